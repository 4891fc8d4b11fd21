"""Command that plans the machines that serve a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import NETWORKS, BundlePath, Json, app, out, print_json

if TYPE_CHECKING:
    from hwnas.deploy.serve.plan import ServingPlan
    from hwnas.deploy.serve.trial import LoadTest

__all__ = ["plan"]


@app.command(rich_help_panel=NETWORKS)
def plan(
    bundle: BundlePath,
    rate: Annotated[float, typer.Option(help="Requests of one image in a second, on average")],
    p99_ms: Annotated[float, typer.Option(help="Largest 99th percentile of the latency, in ms")],
    machine: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=CORES:PRICE[:SPEED]",
            help="Machine with its price of an hour, and its speed relative to this machine; may "
            "be repeated",
        ),
    ],
    image: Annotated[
        Path | None,
        typer.Option(help="Image file of the requests; raw pixels if not given"),
    ] = None,
    check_seconds: Annotated[
        float | None,
        typer.Option(help="Also run one server of the plan here for so long, under its load"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the cheapest machines that serve a bundle at a rate within a latency limit."""
    from hwnas.api.serving import plan_serving

    found = plan_serving(bundle, rate, p99_ms, machine, image=image, check_seconds=check_seconds)
    if as_json:
        print_json(found.to_json())
        return
    for line in _told(bundle, found.plans, found.check):
        out.print(line, soft_wrap=True, markup=False)


def _told(bundle: Path, plans: list[ServingPlan], check: LoadTest | None) -> list[str]:
    lines = []
    for each in plans:
        settings, servers = each.settings, f"{each.servers} server{'s' * (each.servers > 1)}"
        lines.append(
            f"{each.machines} x {each.machine.name} for {each.price:.4g} an hour: {servers} of "
            f"{each.artifact}, {settings.threads} thread{'s' * (settings.threads > 1)}, batches of "
            f"up to {settings.max_batch}, p50 {each.p50_ms:.3g} ms and p99 {each.p99_ms:.3g} ms "
            "(simulated)"
        )
    best = plans[0]
    if check is not None:
        lines.append(
            f"one server here at {check.per_second:.4g} requests a second: p50 {check.p50_ms:.3g} "
            f"ms and p99 {check.p99_ms:.3g} ms (measured, {check.requests} requests)"
        )
    settings = best.settings
    lines.append(
        f"next: hwnas serve {bundle} --artifact {best.artifact} --threads {settings.threads} "
        f"--max-batch {settings.max_batch} --max-wait-ms {settings.max_wait_ms:g}"
    )
    return lines
