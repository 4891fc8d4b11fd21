"""Small HTTP server for a bundle, which batches requests, counts them and enforces limits."""

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
