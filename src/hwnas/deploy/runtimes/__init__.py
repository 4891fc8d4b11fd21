"""The runtimes that networks can be measured on, by the name that targets have them under."""

from hwnas.deploy.runtimes.known import RUNTIMES, open_session

__all__ = ["RUNTIMES", "open_session"]
