"""Models that a recipe names: from a user's code or a library, with weights from a file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hwnas.errors import ArtifactError, ConfigError
from hwnas.plugin import build, resolve
from hwnas.registry import Plugin, Registry
from hwnas.search_spaces.any_model.analysis import elastic
from hwnas.search_spaces.any_model.space import ElasticSpace
from hwnas.search_spaces.any_model.trial import checked_output
from hwnas.search_spaces.space.space_plugin import SpacePlugin

__all__ = [
    "MODEL_SOURCES",
    "PLUGINS",
    "ModelSource",
    "check_model_outputs",
    "load_weights",
    "made_model",
    "make_model",
    "named_elastic",
]

_SHOWN = 3  # names in a message

ModelSource = Callable[[str, tuple[int, int, int], int, bool, Path], nn.Module]
"""Function that makes a model; an attribute ``trained`` of it is true if all weights are trained.

It gets the part of ``space.model`` behind the colon, the height, width and channels of the images,
the number of outputs, whether to load weights, and the folder that relative paths start from."""

MODEL_SOURCES: Registry[ModelSource] = Registry(
    "model source", __package__, "hwnas.deploy.onnx.trainable"
)
"""Libraries and kinds of files that a model may come from, by what is before the colon."""


def named_elastic(
    image_shape: tuple[int, int, int],
    outputs: int,
    model: str,
    weights: str = "",
    widths: Sequence[float] = (0.5, 0.75, 1.0),
    step: int = 8,
    min_depth: float = 0.5,
    keep: Sequence[str] = (),
    pretrained: bool | None = None,
    folder: Path = Path(),
) -> ElasticSpace:
    """Return the space of a recipe's ``[space] name = "elastic"``.

    Args:
        image_shape: Height, width and channels.
        outputs: Length of the output vector, of an image or of each of its pixels.
        model: ``"package.module:function"``, called with those of ``image_shape`` and ``outputs``
            that it accepts; ``"onnx:FILE"``, ``"timm:NAME"``, or ``"hf:NAME"``.
        weights: Safetensors file with the state of the model. If empty, the model keeps the weights
            that it is built with; random ones are the same each time.
        widths: Options for the share of the channels of each group of layers that remains, each in
            (0, 1].
        step: Numbers of channels are multiples of this number, or the full number.
        min_depth: Smallest share of each run of residual blocks that remains, in [0, 1].
        keep: Names of modules that stay unchanged.
        pretrained: Whether the model has trained weights, which the supernet then learns from. If
            None, this is true with a file of ``weights``, for a model of ``onnx:``, and for one of
            ``hf:`` that has as many outputs as are wanted.
        folder: Folder that relative paths start from.

    Raises:
        ConfigError: The model cannot be made, its output has another shape, or it cannot be made
            elastic.
        ArtifactError: The weights are missing, damaged or of another model.
    """
    height, width, channels = image_shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = make_model(model, image_shape, outputs, not weights, folder)
        example = torch.randn(2, channels, height, width)
    if weights:
        load_weights(network, folder / Path(os.path.expandvars(weights)).expanduser())
    if pretrained is None:
        pretrained = bool(weights) or getattr(network, "trained", False) is True
    space = elastic(
        network,
        example,
        widths=widths,
        step=step,
        min_depth=min_depth,
        keep=keep,
        pretrained=pretrained,
    )
    check_model_outputs(model, network, example, outputs)
    return space


def check_model_outputs(model: str, network: nn.Module, example: Tensor, outputs: int) -> None:
    """Check the shape of a model's output.

    Args:
        model: Name of the model, for messages.
        network: Model.
        example: Images, (N, C, H, W).
        outputs: Wanted length of the output vector, of an image or of each of its pixels.

    Raises:
        ConfigError: The output has another shape.
    """
    images, shape = len(example), tuple(checked_output(network.eval(), example).shape)
    if shape[:2] != (images, outputs):
        raise ConfigError(
            f"space.model {model!r} gives outputs of shape {shape} for {images} images; expected "
            f"({images}, {outputs}), or with height and width after it for outputs of each pixel. "
            "Let the function take `outputs`, and build the last layer with it"
        )


def make_model(
    name: str,
    image_shape: tuple[int, int, int],
    outputs: int,
    pretrained: bool = True,
    folder: Path = Path(),
) -> nn.Module:
    """Return a model by its name in a recipe.

    Args:
        name: See `named_elastic`.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        pretrained: Whether a model of ``hf:`` is loaded with its weights; those of ``timm:`` never
            are, those of ``onnx:`` always.
        folder: Folder that a relative path behind ``hf:`` or ``onnx:`` starts from.

    Raises:
        ConfigError: The name is unknown, its library is not installed, or building it fails.
    """
    source, _, rest = name.partition(":")
    if source in MODEL_SOURCES:
        return MODEL_SOURCES[source](rest, image_shape, outputs, pretrained, folder)
    if ":" not in name:
        named = ", ".join(f"'{source}:...'" for source in MODEL_SOURCES)
        raise ConfigError(
            f"space.model is {name!r}; expected 'package.module:function', or one of {named}"
        )
    known: Mapping[str, Any] = {}
    factory = resolve("space.model", name, known)
    return made_model(name, factory, image_shape, outputs)


def made_model(
    name: str, model: object, image_shape: tuple[int, int, int], outputs: int
) -> nn.Module:
    """Return a given model, or the one that a given function makes.

    Args:
        name: Name of the model, for messages.
        model: Model, or a function that is called with those of the other arguments that it takes.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.

    Raises:
        ConfigError: The function fails, or its result is no model.
    """
    given = {"image_shape": image_shape, "outputs": outputs}
    a_function = callable(model) and not isinstance(model, nn.Module)
    made = _called(name, model, given) if a_function else model
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"space.model {name!r} gives a {type(made).__name__}; expected a torch.nn.Module"
        )
    return made


def _called(name: str, factory: Any, given: Mapping[str, Any]) -> Any:
    try:
        return build("space.model", factory, {}, **given)
    except ConfigError:
        raise
    except Exception as error:  # user code may raise anything; name the type
        raise ConfigError(f"space.model {name!r} fails: {type(error).__name__}: {error}") from error


def _from_timm(
    name: str, image_shape: tuple[int, int, int], outputs: int, pretrained: bool, folder: Path
) -> nn.Module:
    timm = _library("timm", f"timm:{name}")
    try:
        made: nn.Module = timm.create_model(
            name, pretrained=False, num_classes=outputs, in_chans=image_shape[2]
        )
    except Exception as error:  # unknown names and bad options raise many types
        raise ConfigError(f"space.model 'timm:{name}': {error}") from error
    return made


class Logits(nn.Module):
    """Model of Transformers that returns its logits as a tensor.

    Args:
        model: Image classifier.
        trained: Whether all of its weights are trained.
    """

    def __init__(self, model: nn.Module, trained: bool) -> None:
        super().__init__()
        self.model, self.trained = model, trained

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, outputs) of images (N, C, H, W)."""
        logits: Tensor = self.model(pixel_values=images).logits
        return logits


def _from_transformers(
    name: str, image_shape: tuple[int, int, int], outputs: int, pretrained: bool, folder: Path
) -> nn.Module:
    library = _library("transformers", f"hf:{name}")
    maker = library.AutoModelForImageClassification
    source = str(folder / name) if (folder / name).is_dir() else name
    try:
        if not pretrained:
            config = library.AutoConfig.from_pretrained(source, num_labels=outputs)
            return Logits(maker.from_config(config), trained=False)
        made, loaded = maker.from_pretrained(
            source,
            num_labels=outputs,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # network, names and formats raise many types
        reason = (str(error).splitlines() or [type(error).__name__])[0].removesuffix(".")
        raise ConfigError(
            f"space.model 'hf:{name}': {reason}. Give the name of an image classifier on the hub, "
            "or a folder that `save_pretrained` wrote"
        ) from error
    # A head for other outputs starts at random, so the model is no teacher.
    return Logits(made, not loaded["missing_keys"] and not loaded["mismatched_keys"])


def _library(package: str, name: str) -> Any:
    if find_spec(package) is None:
        raise ConfigError(
            f"space.model {name!r}: {package} is not installed; run: pip install {package}"
        )
    try:
        return importlib.import_module(package)
    except Exception as error:  # an installation may be broken in any way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"space.model {name!r}: {package} does not import ({type(error).__name__}: {reason})"
        ) from error


def load_weights(network: nn.Module, path: Path) -> None:
    """Load the state of a safetensors file into a model.

    Raises:
        ArtifactError: There is no such file, it is damaged, or it has other keys or shapes.
    """
    if not path.is_file():
        raise ArtifactError(f"space.weights: there is no file {path}")
    try:
        given = load_file(path)
    except SafetensorError as error:
        raise ArtifactError(f"space.weights: {path} is not a safetensors file ({error})") from error
    wanted = network.state_dict()
    problems = {
        "missing": sorted(set(wanted) - set(given)),
        "unexpected": sorted(set(given) - set(wanted)),
        "of another shape": [
            f"{name} {tuple(given[name].shape)} for {tuple(wanted[name].shape)}"
            for name in sorted(set(given) & set(wanted))
            if given[name].shape != wanted[name].shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {_shown(names)}" for what, names in problems.items() if names)
        raise ArtifactError(f"space.weights: {path.name} does not fit the model; {listed}")
    network.load_state_dict(given)


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


PLUGINS = (
    SpacePlugin("space", "elastic", named_elastic, "Channels and blocks of a model of your own"),
    Plugin("model source", "hf", _from_transformers, "Image classifier of Transformers"),
    Plugin("model source", "timm", _from_timm, "Model of timm, with random weights"),
)
