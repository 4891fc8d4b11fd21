"""Runtimes that networks can be measured on, by their names in targets."""

from hwnas.deploy.runtimes.registry import RUNTIMES, open_session, unavailable, unsupported

__all__ = ["RUNTIMES", "open_session", "unavailable", "unsupported"]
