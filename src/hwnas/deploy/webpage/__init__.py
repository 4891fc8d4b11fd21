"""Static web pages that run an exported network in the browser, offline after the first load."""

from hwnas.deploy.webpage.export import write_web_page

__all__ = ["write_web_page"]
