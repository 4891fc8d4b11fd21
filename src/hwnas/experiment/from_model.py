"""Recipe that compresses a trained model: smaller networks within it, in several number formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas.deploy import Bundle
from hwnas.deploy.onnx.module import OnnxModule
from hwnas.deploy.targets.target import RUNTIMES, Device, Target
from hwnas.errors import ConfigError
from hwnas.experiment.from_images import data_table, is_image_source, name_of, task_tables
from hwnas.recipe.text import recipe_text
from hwnas.search.objectives.objective import Objective
from hwnas.search_spaces.quantised.settings import DENSE, stored_share

__all__ = [
    "DEFAULT_DEVICE",
    "MINUTES",
    "WIDTHS",
    "cost_objectives",
    "model_settings",
    "recipe_for_model",
    "sparse_formats",
]

DEFAULT_DEVICE = "cpu-onnxruntime-b1-t1"
MINUTES = 30.0
WIDTHS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the channels that may remain."""

_FORMATS = ("fp32", "int8")
_SPARSE = "int8"  # format of networks with zeros


def recipe_for_model(
    model: str,
    data: str,
    minutes: float = MINUTES,
    targets: Sequence[str] = (DEFAULT_DEVICE,),
    max_loss_points: float = 1.0,
    weights: Path | None = None,
    size: int | None = None,
    sparsity: Sequence[str] = (),
) -> str:
    """Return the text of a recipe.

    Args:
        model: Name of the model, as ``space.model`` of a recipe; or the path of an ONNX file or of
            a bundle.
        data: Folder of images and their targets, ``.npz`` archive, or ``data.source`` of a recipe.
        minutes: Budget of the whole job, in minutes.
        targets: Targets, or devices whose number formats are searched, such as
            ``"cpu-onnxruntime-b1-t1"``; a network ships for the one on which it is fastest.
        max_loss_points: Largest loss of a finalist; see `RunConfig`.
        weights: Safetensors file with the state of the model; None if the model has its weights.
        size: Side of the images in pixels; None for their own, bounded by the budget.
        sparsity: Structures of zeros that the weights of a block may have, such as ``"2of4"``. The
            networks ship in int8, and their size is an objective, too.

    Raises:
        ConfigError: The model is another kind of file, a target or a structure is unknown, or the
            images do not exist.
        ArtifactError: The ONNX file or the bundle is damaged.
        DataError: The folder has another layout.
    """
    name_of_model, settings = model_settings(model)
    path = Path(data).expanduser()
    task: Mapping[str, Any] = {}
    if path.exists() and is_image_source(path):
        table, name = data_table(path, minutes), name_of(path)
        task, objective = task_tables(path)
    else:
        table, name = {"source": data}, name_of(Path(data.partition(":")[2] or data))
        objective = {"metric": "accuracy", "direction": "maximize"}
    table |= settings
    if size is not None:
        table["size"] = size
    space: dict[str, Any] = {"name": "elastic", "model": name_of_model, "pretrained": True}
    if weights is not None:
        space["weights"] = str(weights.expanduser().resolve())
    space["widths"] = WIDTHS
    if sparsity:
        space = {"name": "quantised", **sparse_formats(sparsity), "network": space}
    return recipe_text(
        {
            "name": f"{name}-compressed",
            "run": {"minutes": minutes, "max_loss_points": max_loss_points},
            "data": table,
            **task,
            "space": space,
            "objective": [objective, *cost_objectives(targets, sparsity)],
        }
    )


def model_settings(model: str) -> tuple[str, dict[str, Any]]:
    """Return ``space.model`` for a model, and the settings of ``[data]`` that it needs.

    Args:
        model: See `recipe_for_model`. An ONNX file decides the size of the images; a bundle also
            their means and standard deviations, and how they get their aspect ratio.

    Raises:
        ConfigError: The model is another kind of file.
        ArtifactError: The ONNX file or the bundle is damaged.
    """
    path = Path(model).expanduser()
    if not path.exists() and path.suffix != ".onnx":
        return model, {}
    if path.is_dir():
        bundle = Bundle.load(path)
        how, file = bundle.preprocessing, bundle.onnx_file
        size = (how.height, how.width)
        settings = {"size": size, "fit": how.fit, "mean": how.mean, "std": how.std}
        return f"onnx:{file.resolve()}", settings
    if path.suffix != ".onnx":
        raise ConfigError(
            f"{model} is not an ONNX file; give one, a bundle, 'package.module:function', "
            "'timm:NAME' or 'hf:NAME'"
        )
    shape = OnnxModule.load(path).input_shape
    if len(shape) != 3:
        raise ConfigError(
            f"{model} takes inputs of shape {shape}; expected images: channels, height and width"
        )
    return f"onnx:{path.resolve()}", {"size": shape[1:]}


def sparse_formats(sparsity: Sequence[str]) -> dict[str, Any]:
    """Return the options of space ``quantised`` for networks in int8 with zeros.

    Args:
        sparsity: Structures of zeros, such as ``"2of4"``, in any order.

    Raises:
        ConfigError: A structure is unknown.
    """
    options = sorted({*sparsity, DENSE}, key=stored_share)
    return {"weight_bits": (8,), "activation_bits": (8,), "sparsity": tuple(options)}


def cost_objectives(targets: Sequence[str], sparsity: Sequence[str] = ()) -> tuple[Objective, ...]:
    """Return the objective for the latency on the best of some targets; with zeros, for size, too.

    Args:
        targets: Targets, or devices whose number formats count as targets.
        sparsity: Structures of zeros that the networks, which then ship in int8, may have.

    Raises:
        ConfigError: A target is unknown, or in another format than int8 although there are zeros.
    """
    found: dict[str, None] = {}
    for name in targets:
        able = _targets(name, (_SPARSE,) if sparsity else _FORMATS)
        if sparsity and [target.format for target in able] != [_SPARSE]:
            raise ConfigError(
                f"target {name} has no int8, in which networks with zeros among their weights "
                "ship; give a device or a target that has, or leave the sparsity out"
            )
        found |= dict.fromkeys(target.name for target in able)
    if len(found) == 1:
        latency = Objective("latency_ms", "minimize", target=next(iter(found)))
    else:
        latency = Objective("latency_ms", "minimize", targets=tuple(found), reduce="min")
    return (latency, Objective("weight_bytes", "minimize")) if sparsity else (latency,)


def _targets(name: str, formats: Sequence[str]) -> list[Target]:
    """Return a target, or the targets of a device in those of some number formats that it has."""
    device = Device.parse(name)
    if device.name != name:
        return [Target.parse(name)]
    able = RUNTIMES[device.runtime].formats
    return [Target(device, each) for each in formats if each in able]
