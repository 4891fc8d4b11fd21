"""Fine-tuning of a bundle's classifier on new images within a memory limit, planned and run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.bundles.checksums import sha256
from hwnas.deploy.bundles.packing import BundleFacts, BundleNetwork, write_bundle
from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.finetuning.choice import check_limit, chosen_scheme
from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.contribution import Contributions, measured_contributions
from hwnas.deploy.finetuning.joint_graph import JointGraph, trace_network
from hwnas.deploy.finetuning.plan import FineTuningPlan, training_memory
from hwnas.deploy.finetuning.scheme import UpdateScheme
from hwnas.deploy.finetuning.training import Batches, FineTuningSettings, fine_tune
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.onnx.trainable import trainable_network
from hwnas.errors import ArtifactError, ConfigError, DataError, StorageError
from hwnas.progress import Reporter
from hwnas.search.data.image_data import ImageData, Split
from hwnas.search.evaluation.converted import Executed
from hwnas.search.evaluation.scoring import Evaluation, score
from hwnas.search.tasks.classification import Classification
from hwnas.stages.deployment.model_source import images_of_bundle
from hwnas.stages.finalists.packing import metric_rows

__all__ = [
    "FineTuningResult",
    "PlanOptions",
    "finetune_bundle",
    "plan_finetuning",
    "random_batches",
    "stale_files",
]

_HELD_OUT = 512  # validation images that contributions are measured on
_AT_ONCE = 64


@dataclass(frozen=True)
class PlanOptions:
    """Limit of a fine-tuning, and how its scheme is chosen.

    Attributes:
        memory_bytes: Most memory of weights, optimiser, activations and gradients, in bytes.
        batch: Number of images of a step.
        activation_bits: Bits of an activation that is kept for the backward pass, 32 or 4.
        probe: Settings of the short fine-tuning that measures the contribution of a layer; the
            fine-tuning itself has the same optimiser.
    """

    memory_bytes: int
    batch: int = 8
    activation_bits: int = 32
    probe: FineTuningSettings = field(default_factory=partial(FineTuningSettings, steps=8))

    def __post_init__(self) -> None:
        if self.memory_bytes < 1:
            raise ConfigError(f"the memory has {self.memory_bytes} bytes; expected at least 1")
        if self.batch < 1:
            raise ConfigError(f"batch is {self.batch}; expected at least 1")


@dataclass(frozen=True)
class FineTuningResult:
    """Result of a fine-tuning.

    Attributes:
        bundle: The fine-tuned network.
        before: Scores on test images before.
        after: Scores on test images after, of the file of the bundle.
    """

    bundle: Bundle
    before: Evaluation
    after: Evaluation

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        values = {"before": self.before.to_json(), "after": self.after.to_json()}
        return {"bundle": str(self.bundle.folder), **values}


def plan_finetuning(
    bundle: Bundle, source: str, options: PlanOptions, reporter: Reporter
) -> FineTuningPlan:
    """Choose what to train of a bundle's classifier within a memory limit, and compile it.

    Args:
        bundle: Bundle of a classifier.
        source: Images to fine-tune on, as ``data.source`` of a recipe, or the folder of a run.
        options: The limit, and how the scheme is chosen.
        reporter: Reporter of progress to the user.

    Raises:
        ConfigError: The bundle is not a classifier, or an option is wrong.
        DataError: The images do not fit the network, or are fewer than a batch.
        ArtifactError: The network is damaged, quantised, or cannot be differentiated.
        InfeasibleError: Nothing can be trained within the limit.
    """
    _, data = _images(bundle, source, options.batch)
    network = trainable_network(bundle.onnx_file)
    graph = trace_network(network, network.input_shape, options.batch)
    optimizer, bits = options.probe.optimizer, options.activation_bits

    def total_bytes(scheme: UpdateScheme) -> int:
        return training_memory(compile_scheme(graph, scheme, bits), optimizer).total_bytes

    limit, seed = options.memory_bytes, options.probe.seed
    check_limit(graph.layers, total_bytes, limit)
    found = _contributions(bundle, network, graph, data, options, reporter)
    with reporter.stage("choosing what to train"):
        scheme = chosen_scheme(graph.layers, found, total_bytes, limit, seed)
    program = compile_scheme(graph, scheme, bits)
    checksum = sha256(bundle.onnx_file)
    return FineTuningPlan.of(checksum, program, scheme, optimizer, bits, limit, found.to_json())


def finetune_bundle(
    bundle: Bundle,
    source: str,
    plan: FineTuningPlan,
    settings: FineTuningSettings,
    out: Path,
    reporter: Reporter,
) -> FineTuningResult:
    """Fine-tune a bundle's classifier by a plan, and write the result as a bundle.

    Args:
        bundle: Bundle that the plan is for.
        source: Images to fine-tune on, as ``data.source`` of a recipe, or the folder of a run.
        plan: Plan of `plan_finetuning`.
        settings: Settings of the fine-tuning, with the plan's optimiser.
        out: Folder of the new bundle.
        reporter: Reporter of progress to the user.

    Raises:
        ConfigError: The bundle is not a classifier, the plan is for another network or optimiser,
            or the loss is not a number.
        DataError: The images do not fit the network, or are fewer than a batch.
        ArtifactError: The network is damaged, or the program of the plan needs other memory here.
        StorageError: ``out`` exists already or cannot be written.
    """
    if out.exists():
        raise StorageError(f"{out} exists already; choose another --out")
    bundle.verify()  # else a damaged file would get a new checksum
    task, data = _images(bundle, source, plan.batch)
    _check_plan(bundle, plan, settings)
    network = trainable_network(bundle.onnx_file)
    program = plan.compiled(network, network.input_shape)
    if training_memory(program, plan.optimizer) != plan.memory:
        raise ArtifactError(
            "the program of the plan needs other memory with this version of PyTorch; plan again"
        )
    shape = bundle.preprocessing.input_shape
    before = score(network, task, data.test, shape, "test")
    batches = random_batches(data.train, bundle.preprocessing, plan.batch, settings.seed)
    with reporter.stage("fine-tuning") as advance:
        fine_tune(network, program, batches, settings, advance)
    origin = {
        "finetuned_from": {"id": bundle.description["id"], "network": plan.network},
        "data": {"source": source, "fingerprint": data.fingerprint},
        "training_images": len(data.train),
        "steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "optimizer": settings.optimizer,
        "seed": settings.seed,
        "batch": plan.batch,
        "scheme": plan.scheme.to_json(),
        "memory": plan.memory.to_json(),
    }
    after = _write(bundle, network, task, data, origin, out)
    written = Bundle.load(out)
    written.verify()
    if names := stale_files(bundle):
        reporter.note(
            f"not copied, since their weights are the old ones: {', '.join(names)}; make them "
            "again with `hwnas sweep` and `hwnas convert`"
        )
    return FineTuningResult(written, before, after)


def stale_files(bundle: Bundle) -> list[str]:
    """Return the names of a bundle's variants and converted files, which keep the old weights."""
    variants = [each.file for each in bundle.artifacts if each.variant != "fp32"]
    return sorted({*variants, *(each.main for each in bundle.converted)})


def random_batches(split: Split, preprocessing: Preprocessing, batch: int, seed: int) -> Batches:
    """Yield batches of a split without an end, in a new order in each epoch.

    Args:
        split: Images and classes, at least as many as a batch.
        preprocessing: Preprocessing from images to the network's input.
        batch: Number of images of a batch; what remains of an epoch is left out.
        seed: Seed of the order.
    """
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(split))
        for start in range(0, len(order) - batch + 1, batch):
            images, classes = split.take(order[start : start + batch])
            yield preprocessing(images).contiguous(), torch.from_numpy(classes)


def _images(bundle: Bundle, source: str, batch: int) -> tuple[Classification, ImageData]:
    """Return images for a classifier, with a task that preprocesses them as the bundle does."""
    if bundle.outputs.kind != "class_scores":
        raise ConfigError(
            f"{bundle.folder} gives {bundle.outputs.kind}; fine-tuning on a device is for networks "
            "that give class_scores"
        )
    found = images_of_bundle(bundle, source)
    if not isinstance(found.task, Classification):
        raise ConfigError(
            f"{source} is for the task {found.task.name}; give images with one class each"
        )
    if len(found.data.train) < batch:
        raise DataError(
            f"{source} has {len(found.data.train)} training images, but a batch has {batch}; give "
            "more images or a smaller batch"
        )
    return replace(found.task, preprocessing=bundle.preprocessing), found.data


def _check_plan(bundle: Bundle, plan: FineTuningPlan, settings: FineTuningSettings) -> None:
    if plan.network != sha256(bundle.onnx_file):
        raise ConfigError(
            f"the plan is for another network than that of {bundle.folder}; make one with `hwnas "
            f"finetune-plan {bundle.folder}`"
        )
    if plan.optimizer != settings.optimizer:
        raise ConfigError(
            f"the plan is for the optimizer {plan.optimizer}, not {settings.optimizer}, which needs"
            " other memory; plan again"
        )


def _contributions(
    bundle: Bundle,
    network: nn.Module,
    graph: JointGraph,
    data: ImageData,
    options: PlanOptions,
    reporter: Reporter,
) -> Contributions:
    batches = partial(
        random_batches, data.train, bundle.preprocessing, options.batch, options.probe.seed
    )
    held_out = _held_out(data.validation, bundle.preprocessing)
    with reporter.stage("measuring what each layer contributes") as advance:
        return measured_contributions(network, graph, batches, held_out, options.probe, advance)


def _held_out(split: Split, preprocessing: Preprocessing) -> list[tuple[Tensor, Tensor]]:
    some = split.first(_HELD_OUT)
    found = []
    for start in range(0, len(some), _AT_ONCE):
        images, classes = some.take(np.arange(start, min(start + _AT_ONCE, len(some))))
        found.append((preprocessing(images).contiguous(), torch.from_numpy(classes)))
    return found


def _write(
    bundle: Bundle,
    network: nn.Module,
    task: Classification,
    data: ImageData,
    origin: Mapping[str, Any],
    out: Path,
) -> Evaluation:
    """Write a fine-tuned network as a bundle; return the scores of its file on test images."""
    shape, preprocessing = bundle.preprocessing.input_shape, bundle.preprocessing
    images = bundle.golden()["images"]
    with tempfile.TemporaryDirectory() as folder:
        examples = preprocessing(images).contiguous()
        export = export_onnx(network, shape, Path(folder, "model.onnx"), examples, preprocessing)
        executed = Executed(export.path)
        test = score(executed, task, data.test, shape, "test")
        validation = score(executed, task, data.validation, shape, "validation")
        units = {metric.name: metric.unit for metric in task.metrics}
        counted = [each for each in bundle.description["metrics"] if each["kind"] == "counted"]
        rows = [
            row for each in (test, validation) for row in metric_rows(each, units, "onnxruntime")
        ]
        facts = BundleFacts(bundle.description["space"], task.name, dict(origin), [*rows, *counted])
        packed = BundleNetwork(
            bundle.architecture,
            export,
            network.state_dict(),
            preprocessing,
            bundle.outputs,
            images,
        )
        write_bundle(out, packed, facts)
    return test
