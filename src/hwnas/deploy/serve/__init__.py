"""Small HTTP server for a bundle or cascade, which batches and counts requests within limits."""

from hwnas.deploy.serve.batching import Batcher
from hwnas.deploy.serve.limits import RequestRefusal, ServerLimits
from hwnas.deploy.serve.server import BundleServer, serve
from hwnas.deploy.serve.service import BatchSettings, Service

__all__ = [
    "BatchSettings",
    "Batcher",
    "BundleServer",
    "RequestRefusal",
    "ServerLimits",
    "Service",
    "serve",
]
