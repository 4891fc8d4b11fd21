"""Command that serves a bundle or a cascade over HTTP."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from hwnas.cli.app import NETWORKS, BundlePath, app, fail, out
from hwnas.cli.networks.caching import (
    ENTRIES,
    CacheData,
    CacheEntries,
    CacheMb,
    CacheNear,
    cache_of,
)

__all__ = ["serve"]


@app.command(rich_help_panel=NETWORKS)
def serve(
    bundle: BundlePath,
    host: Annotated[str, typer.Option(help="Address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free port")
    ] = 8000,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the runtime")] = 1,
    max_batch: Annotated[int, typer.Option(min=1, help="Most images in one batch")] = 8,
    max_wait_ms: Annotated[
        float, typer.Option(min=0, help="Longest wait for other requests to fill a batch, in ms")
    ] = 2.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Most images that may wait")] = 128,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Largest size of a request, in MB")] = 16,
    memory_mb: Annotated[
        int,
        typer.Option(
            min=1, help="Memory limit of all requests together, without the network, in MB"
        ),
    ] = 1000,
    max_megapixels: Annotated[
        int, typer.Option(min=1, max=89, help="Largest decoded image, in megapixels")
    ] = 25,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Most connections at the same time")
    ] = 64,
    client_timeout: Annotated[
        float, typer.Option(help="Time limit for sending a request, in seconds")
    ] = 30,
    name: Annotated[str | None, typer.Option(help="Name of the model in addresses")] = None,
    artifact: Annotated[
        str | None,
        typer.Option(help="Artifact of the bundle, such as int8@openvino; its first by default"),
    ] = None,
    cache_mb: CacheMb = None,
    cache_entries: CacheEntries = ENTRIES,
    cache_near: CacheNear = None,
    cache_data: CacheData = None,
) -> None:
    """Answer requests over HTTP in batches, to try a bundle or cascade out and as an example."""
    from hwnas.deploy.bundles.bundle import Bundle
    from hwnas.deploy.cascades.cascade import open_packed
    from hwnas.deploy.serve import BatchSettings, BundleServer, ServerLimits, serve

    def started(server: BundleServer) -> None:
        out.print(f"{bundle}: {kind} {server.service.name} at {server.url}", soft_wrap=True)
        out.print(f"try: curl --data-binary @image.png {server.url}/predict", soft_wrap=True)

    limits = ServerLimits(
        memory_bytes=memory_mb * 10**6,
        pixels=max_megapixels * 10**6,
        body_bytes=max_body_mb * 10**6,
        waiting_images=max_queue,
        connections=max_connections,
        client_s=client_timeout,
    )
    settings = BatchSettings(max_batch, max_wait_ms, threads)
    opened = open_packed(bundle)
    kind = "network" if isinstance(opened, Bundle) else "cascade"
    cache = cache_of(opened, cache_mb, cache_entries, cache_near, cache_data)
    warnings = opened.warnings(artifact) if isinstance(opened, Bundle) else opened.warnings()
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    ended_by = serve(
        opened,
        settings,
        limits,
        host=host,
        port=port,
        name=name,
        cache=cache,
        artifact=artifact,
        started=started,
    )
    if ended_by == signal.SIGINT:
        fail("interrupted; all accepted requests were answered", 130)
