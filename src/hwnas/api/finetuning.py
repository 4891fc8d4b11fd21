"""Fine-tuning in little memory from Python: the plan, and the fine-tuning by it."""

from __future__ import annotations

from pathlib import Path

from hwnas.api.given_networks import opened_bundle
from hwnas.api.run import Network
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.finetuning.plan import FineTuningPlan
from hwnas.deploy.finetuning.training import FineTuningSettings
from hwnas.progress import Reporter, make_reporter
from hwnas.stages.deployment.finetuning import (
    FineTuningResult,
    PlanOptions,
    finetune_bundle,
    plan_finetuning,
)

__all__ = ["finetune", "finetune_plan"]


def finetune_plan(
    bundle: str | Path | Bundle | Network,
    data: str,
    memory_bytes: int,
    *,
    batch: int = 8,
    optimizer: str = "sgd",
    activation_bits: int = 32,
    probe_steps: int = 8,
    learning_rate: float = 0.01,
    seed: int = 0,
    path: str | Path | None = None,
    reporter: Reporter | None = None,
) -> FineTuningPlan:
    """Choose what to train of a classifier on new images within a memory limit.

    The contribution of each layer is measured by a short fine-tuning of it alone. The weights and
    biases that contribute most within the limit are chosen, and their gradients compiled.

    Args:
        bundle: Bundle of a classifier, its path, or a finalist of a run.
        data: Images to fine-tune on, as ``data.source`` of a recipe, or the folder of a run.
        memory_bytes: Most memory of weights, state of the optimiser, activations and gradients.
        batch: Number of images of a step.
        optimizer: ``"sgd"`` (momentum 0.9) or ``"adam"``.
        activation_bits: Bits of an activation that is kept for the backward pass: 32, or 4, which
            rounds.
        probe_steps: Steps of each short fine-tuning.
        learning_rate: Learning rate of these.
        seed: Seed of the order of the images, and of the search.
        path: File to write the plan to; nothing is written if None.
        reporter: Reporter of the progress; the standard error if None.

    Raises:
        ConfigError: The network is not a classifier, or an option is wrong.
        DataError: The images do not fit the network, or are fewer than a batch.
        ArtifactError: The network is damaged, quantised, or cannot be differentiated.
        InfeasibleError: Nothing can be trained within the limit; the message says the least one.
        StorageError: ``path`` cannot be written.
    """
    probe = FineTuningSettings(probe_steps, learning_rate, optimizer, seed)
    options = PlanOptions(memory_bytes, batch, activation_bits, probe)
    found = plan_finetuning(opened_bundle(bundle), data, options, reporter or make_reporter())
    if path is not None:
        found.write(Path(path))
    return found


def finetune(
    bundle: str | Path | Bundle | Network,
    data: str,
    plan: str | Path | FineTuningPlan,
    path: str | Path,
    *,
    steps: int = 200,
    learning_rate: float = 0.01,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> FineTuningResult:
    """Fine-tune a classifier on new images by a plan, and write it as a new bundle.

    Args:
        bundle: Bundle that the plan is for, its path, or a finalist of a run.
        data: Images to fine-tune on, as ``data.source`` of a recipe, or the folder of a run.
        plan: Plan of `finetune_plan`, or its file.
        path: Folder of the new bundle.
        steps: Number of batches.
        learning_rate: Learning rate of the first step; it falls to 0 along half a cosine.
        seed: Seed of the order of the images.
        reporter: Reporter of the progress; the standard error if None.

    Raises:
        ConfigError: The network is not a classifier, or the plan is for another one.
        DataError: The images do not fit the network, or are fewer than a batch.
        ArtifactError: The network or the plan is damaged.
        StorageError: ``path`` exists already or cannot be written.
    """
    found = plan if isinstance(plan, FineTuningPlan) else FineTuningPlan.read(Path(plan))
    settings = FineTuningSettings(steps, learning_rate, found.optimizer, seed)
    return finetune_bundle(
        opened_bundle(bundle), data, found, settings, Path(path), reporter or make_reporter()
    )
