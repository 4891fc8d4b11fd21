"""Command that serves a bundle over HTTP."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from hwnas.cli.app import NETWORKS, BundlePath, app, fail, out

__all__ = ["serve"]


@app.command(rich_help_panel=NETWORKS)
def serve(
    bundle: BundlePath,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    threads: Annotated[int, typer.Option(min=1, help="Of ONNX Runtime.")] = 1,
    max_batch: Annotated[int, typer.Option(min=1, help="Images run at once.")] = 8,
    max_wait_ms: Annotated[
        float, typer.Option(min=0, help="A request waits so long for others to join it.")
    ] = 2.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Images that may wait.")] = 128,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Size of a request.")] = 16,
    memory_mb: Annotated[
        int, typer.Option(min=1, help="Of all requests together, beside what the network takes.")
    ] = 1000,
    max_megapixels: Annotated[
        int, typer.Option(min=1, max=89, help="Of an image file, decoded.")
    ] = 25,
    max_connections: Annotated[int, typer.Option(min=1, help="Open at the same time.")] = 64,
    client_timeout: Annotated[
        float, typer.Option(help="Seconds that a client may take to send a request.")
    ] = 30,
    name: Annotated[str | None, typer.Option(help="Of the model, in addresses.")] = None,
) -> None:
    """Answer requests over HTTP in batches, to try a bundle out and as an example."""
    from hwnas.deploy.bundle import Bundle
    from hwnas.deploy.serve import BatchSettings, BundleServer, ServerLimits, serve

    def started(server: BundleServer) -> None:
        out.print(f"{bundle}: network {server.service.name} at {server.url}", soft_wrap=True)
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
    opened = Bundle.load(bundle)
    for warning in opened.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    ended_by = serve(opened, settings, limits, host=host, port=port, name=name, started=started)
    if ended_by == signal.SIGINT:
        fail("interrupted; all that was asked is answered", 130)
