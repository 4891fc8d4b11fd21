"""Writing of the variants that a sweep has chosen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.atomic import replacing_folder, write_json
from hwnas.deploy.bundles.artifact import GOLDEN_OUTPUTS, ROUNDED_TOLERANCE, Artifact
from hwnas.deploy.bundles.bundle import GOLDEN, MODEL, Bundle
from hwnas.deploy.bundles.packing import put_artifact, reseal
from hwnas.deploy.export.comparison import TOLERANCE
from hwnas.deploy.onnx.graph import copy_model
from hwnas.deploy.runtimes.triton import kernel_plan
from hwnas.deploy.targets.target import Target
from hwnas.deploy.variants.sweep import Sweep, VariantResult

__all__ = ["write_variants"]

_RESULTS = "sweep.json"


def write_variants(source: Bundle | Path, found: Sweep, to: Path) -> None:
    """Write the chosen variant to a folder, which appears atomically.

    Args:
        source: Source of the sweep: a bundle, or an ONNX file of which nothing else is known.
        found: Result of the sweep; the files of its variants must still exist.
        to: Folder to write. For a bundle: a bundle, with the chosen variant as its first artifact
            and then all others that can be chosen. For a file: ``model.onnx`` and ``sweep.json``.
            In both cases also the files that runtimes read beside the ONNX file.

    Raises:
        ArtifactError: No variant can be chosen.
        StorageError: The folder cannot be written.
    """
    chosen = found.chosen
    with replacing_folder(to) as temporary:
        if isinstance(source, Bundle):
            _write_bundle(source, found, temporary)
            return
        assert chosen.made is not None
        copy_model(chosen.made.model, temporary / MODEL)
        _beside(temporary / MODEL, chosen)
        write_json(temporary / _RESULTS, found.to_json())


def _write_bundle(bundle: Bundle, found: Sweep, folder: Path) -> None:
    shutil.copytree(bundle.folder, folder, dirs_exist_ok=True)
    golden = bundle.golden()
    inputs = bundle.preprocessing(golden["images"]).contiguous().numpy()
    artifacts = []
    for result in found.able:
        artifact = _artifact(bundle, result)
        assert result.made is not None
        target = Target.parse(result.target)
        put_artifact(folder, artifact, result.made.model, target, inputs, golden)
        artifact = replace(artifact, beside=_beside(folder / artifact.file, result))
        artifacts.append({**artifact.to_json(), **_results(result)})
    arrays: dict[str, Any] = golden
    np.savez_compressed(folder / GOLDEN, **arrays)
    tested = {} if found.tested is None else {"tested": found.to_json()["tested"]}
    description = {
        **bundle.description,
        "sweep": {"max_loss": found.max_loss, "chosen": found.to_json()["chosen"], **tested},
    }
    reseal(folder, description, artifacts)


def _artifact(bundle: Bundle, result: VariantResult) -> Artifact:
    target = Target.parse(result.target)
    runtime, variant = target.device.runtime, result.variant
    plain = result.made is not None and result.made.model == bundle.onnx_file
    exact = result.difference is not None and result.difference <= TOLERANCE
    return Artifact(
        bundle.onnx_file.name if plain else f"model.{variant}.onnx",
        variant,
        runtime,
        target.format,
        GOLDEN_OUTPUTS if plain and exact else f"outputs of {variant} on {runtime}",
        TOLERANCE if exact else ROUNDED_TOLERANCE,
    )


def _beside(model: Path, result: VariantResult) -> tuple[str, ...]:
    """Write the files that the variant's runtime reads beside an ONNX file; return their names."""
    target = Target.parse(result.target)
    if target.device.runtime != "triton":
        return ()
    from hwnas.deploy.matching.kernel_plan import plan_file

    plan = plan_file(model, target)
    kernel_plan(model, target).write(plan)
    return (plan.name,)


def _results(result: VariantResult) -> dict[str, Any]:
    """Return the results of the sweep for one variant on one target."""
    known = result.to_json()
    names = ("target", "made", "difference", "answers", "quality", "measurement")
    return {name: known[name] for name in names}
