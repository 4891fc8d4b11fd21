"""Commands on devices, and on costs of networks on them."""

from hwnas.cli.devices import agent, calibrate, measure, predict

__all__ = ["agent", "calibrate", "measure", "predict"]
