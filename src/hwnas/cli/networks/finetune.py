"""Commands that plan a fine-tuning in little memory, and run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from hwnas.cli.app import NETWORKS, Json, app, out, print_json
from hwnas.cli.networks.convert import size_in_bytes

if TYPE_CHECKING:
    from hwnas.deploy.finetuning.plan import FineTuningPlan

Classifier = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of a classifier")]
NewImages = Annotated[
    str, typer.Option("--data", help="Images to fine-tune on, as data.source of a recipe; or a run")
]
Rate = Annotated[float, typer.Option(help="Learning rate of the first step")]
Seed = Annotated[int, typer.Option(help="Seed of the order of the images")]


@app.command("finetune-plan", rich_help_panel=NETWORKS)
def finetune_plan(
    bundle: Classifier,
    data: NewImages,
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Most memory of weights, optimiser, activations and gradients, e.g. 64MB",
        ),
    ],
    out_path: Annotated[Path, typer.Option("--out", help="File for the plan, JSON")],
    batch: Annotated[int, typer.Option(help="Images of a step")] = 8,
    optimizer: Annotated[str, typer.Option(help="sgd (with momentum) or adam")] = "sgd",
    activation_bits: Annotated[
        int, typer.Option(help="Bits of an activation that is kept for the backward pass: 32 or 4")
    ] = 32,
    probe_steps: Annotated[
        int, typer.Option(help="Steps of the short fine-tuning that measures a layer")
    ] = 8,
    learning_rate: Rate = 0.01,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Choose what to train of a classifier on new images within a memory limit."""
    from hwnas.api.finetuning import finetune_plan as planned

    found = planned(
        bundle,
        data,
        size_in_bytes(memory, "--memory"),
        batch=batch,
        optimizer=optimizer,
        activation_bits=activation_bits,
        probe_steps=probe_steps,
        learning_rate=learning_rate,
        seed=seed,
        path=out_path,
    )
    if as_json:
        print_json(found.to_json())
        return
    _show(found)
    out.print(f"next: hwnas finetune {bundle} --data {data} --plan {out_path} --out DIR")


@app.command(rich_help_panel=NETWORKS)
def finetune(
    bundle: Classifier,
    data: NewImages,
    plan: Annotated[Path, typer.Option(help="File that `hwnas finetune-plan` wrote")],
    out_path: Annotated[Path, typer.Option("--out", help="Folder of the new bundle")],
    steps: Annotated[int, typer.Option(help="Number of batches")] = 200,
    learning_rate: Rate = 0.01,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Fine-tune a classifier on new images by a plan; a new bundle out."""
    from hwnas.api.finetuning import finetune as tuned

    found = tuned(bundle, data, plan, out_path, steps=steps, learning_rate=learning_rate, seed=seed)
    if as_json:
        print_json(found.to_json())
        return
    for name, value in found.after.values.items():
        old = found.before.values[name]
        out.print(f"{name} on test images: {value:.4f}, before {old:.4f}", soft_wrap=True)
    out.print(f"bundle: {out_path}", soft_wrap=True, markup=False)


def _show(plan: FineTuningPlan) -> None:
    from hwnas.cli.terminal import table_of

    rows = [
        [escape(name), f"{update.weight:.0%}" if update.weight else "-", _yes(update.bias)]
        for name, update in plan.scheme.layers.items()
    ]
    out.print(table_of(["trained layer", "weight", "bias"], rows))
    memory = plan.memory
    out.print(
        f"{memory.total_bytes:,} bytes predicted: weights {memory.weights_bytes:,}, optimiser "
        f"{memory.optimizer_bytes:,}, at most {memory.peak_bytes:,} in a step of {plan.batch} "
        f"images, of which {memory.saved_bytes:,} are kept for the backward pass",
        soft_wrap=True,
    )
    out.print(
        f"{len(plan.forward)} operators to the loss, {len(plan.backward)} from it to the gradients"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "-"
