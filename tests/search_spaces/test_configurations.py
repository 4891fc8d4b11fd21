"""Random configurations of each family: refused in one line, or a space whose networks run."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces import (
    DenseHead,
    Group,
    HieraConfig,
    HieraSpace,
    HybridConfig,
    HybridSpace,
    HybridStage,
    MobileNetConfig,
    MobileNetSpace,
    ResNetConfig,
    ResNetSpace,
    ResNetStage,
    SearchSpace,
    SimpleNetConfig,
    SimpleNetSpace,
    Stage,
    VitConfig,
    VitSpace,
)


def some(*options: Any, most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a strategy for some of the options, in increasing order."""
    chosen = st.lists(st.sampled_from(options), min_size=1, max_size=most, unique=True)
    return chosen.map(lambda found: tuple(sorted(found)))


def stages(make: Callable[..., Any], **fields: st.SearchStrategy[Any]) -> Any:
    """Return a strategy for one or two stages, which are made together with the configuration."""
    each = st.fixed_dictionaries(fields)
    return st.lists(each, min_size=1, max_size=2).map(
        lambda found: lambda: tuple(make(**one) for one in found)
    )


SIDES, STRIDES, DEPTHS = some(3, 7, 8), st.sampled_from([1, 2]), some(1, 2, 3)
CHANNELS, RATIOS = st.sampled_from([1, 16, 20, 32]), some(0.25, 0.5, 1, 2, 3)
WIDTHS = some(0.5, 1, 1.5)
ONE_OR_THREE = st.sampled_from([1, 3])
KINDS = ["convolution", "attention", "both"]

EXTRAS = {
    "aspect": st.sampled_from([(1, 1), (1, 1), (3, 4), (2, 1)]),
    "dense_head": st.none() | st.builds(DenseHead, st.sampled_from([1, 2, 8]), some(8, 16)),
}

MOBILENET = st.fixed_dictionaries(
    {
        **EXTRAS,
        "stages": stages(
            Stage,
            channels=CHANNELS,
            stride=STRIDES,
            depth=DEPTHS,
            kernel_size=some(1, 3, 5),
            expand_ratio=RATIOS,
            squeeze_excite=st.booleans(),
            operators=st.just(())
            | st.sets(st.sampled_from(["skip", "k3_e1_g2", "k3_e1"])).map(lambda s: (*s, "k5_e3")),
        ),
        "resolution": SIDES,
        "width": WIDTHS,
        "stem_channels": CHANNELS,
        "stem_stride": STRIDES,
        "head_channels": CHANNELS,
        "feature_channels": st.sampled_from([0, 16]),
    }
)
RESNET = st.fixed_dictionaries(
    {
        **EXTRAS,
        "stages": stages(
            ResNetStage, channels=CHANNELS, stride=STRIDES, depth=DEPTHS, expand_ratio=RATIOS
        ),
        "resolution": SIDES,
        "width": WIDTHS,
        "stem_channels": CHANNELS,
        "stem_kernel_size": ONE_OR_THREE,
        "stem_stride": STRIDES,
        "stem_pool": st.booleans(),
    }
)
VIT = st.fixed_dictionaries(
    {
        "depth": DEPTHS,
        "width": some(7, 16, 24, 32),
        "heads": some(1, 2, 3),
        "mlp_ratio": RATIOS,
        "rank": st.just(()) | some(0.2, 0.5, 1),
        "merging": some(0, 0.1, 0.4).map(lambda found: found[::-1]),
        "patch_size": some(2, 4, 3).map(lambda sizes: sizes[::-1]),
        "resolution": some(4, 6, 8),
        "position": st.sampled_from(["convolution", "table"]),
        "head_width": st.sampled_from([0, 1, 8]),
    }
)
HIERA = st.fixed_dictionaries(
    {
        "depth": st.lists(DEPTHS, min_size=1, max_size=2).map(tuple),
        "width": some(7, 16, 24, 32),
        "heads": some(1, 2, 3),
        "mlp_ratio": RATIOS,
        "local_stages": some(0, 1, 2).map(lambda found: found[::-1]),
        "mask_unit": st.sampled_from([1, 2, 4]),
        "patch_size": st.sampled_from([1, 2]),
        "resolution": some(4, 8, 12),
        "position": st.sampled_from(["convolution", "table"]),
        "head_width": st.sampled_from([0, 1, 8]),
        "aspect": st.sampled_from([(1, 1), (3, 4), (2, 1)]),
    }
)
HYBRID = st.fixed_dictionaries(
    {
        **EXTRAS,
        "stages": stages(
            HybridStage,
            channels=CHANNELS,
            stride=STRIDES,
            depth=DEPTHS,
            blocks=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True).map(tuple),
            expand_ratio=RATIOS,
            mlp_ratio=RATIOS,
            fused=st.sampled_from(["none", "first", "all"]),
            attention_stride=STRIDES,
        ),
        "resolution": SIDES,
        "width": WIDTHS,
        "head_width": st.sampled_from([1, 4]),
        "stem_channels": CHANNELS,
        "stem_stride": STRIDES,
        "head_channels": CHANNELS,
        "feature_channels": CHANNELS,
    }
)
SIMPLENET = st.fixed_dictionaries(
    {
        "groups": stages(
            Group,
            channels=st.lists(CHANNELS, min_size=2, max_size=2).map(tuple),
            kernel_size=some(1, 3),
            depth=some(1, 2),
            width=some(0.25, 0.5, 1),
        ),
        "resolution": SIDES,
    }
)
FAMILIES = {
    "mobilenet": (MobileNetSpace, MobileNetConfig, MOBILENET),
    "resnet": (ResNetSpace, ResNetConfig, RESNET),
    "vit": (VitSpace, VitConfig, VIT),
    "hiera": (HieraSpace, HieraConfig, HIERA),
    "hybrid": (HybridSpace, HybridConfig, HYBRID),
    "simplenet": (SimpleNetSpace, SimpleNetConfig, SIMPLENET),
}


def space_of(family: str, fields: dict[str, Any], in_channels: int) -> SearchSpace | ConfigError:
    """Return the space, or the error that refuses its configuration."""
    make, configure, _ = FAMILIES[family]
    try:
        made = {n: value() if callable(value) else value for n, value in fields.items()}
        return make(configure(**made, in_channels=in_channels, outputs=3))  # type: ignore[operator]
    except ConfigError as error:
        return error


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20)
@given(data=st.data(), in_channels=ONE_OR_THREE)
def test_config_is_refused_in_one_line_or_gives_a_working_space(
    family: str, data: st.DataObject, in_channels: int
) -> None:
    space = space_of(family, data.draw(FAMILIES[family][2]), in_channels)
    if isinstance(space, ConfigError):
        assert len(str(space).splitlines()) == 1
        return
    supernet = space.supernet().eval()
    for architecture in (space.smallest(), space.largest(), space.sample(random.Random(0))):
        images = torch.randn(2, *space.input_shape(architecture))
        supernet.activate(architecture)
        with torch.no_grad():
            outputs = supernet(images)
            assert outputs.shape[:2] == (2, 3)
            assert outputs.dim() == (2 if getattr(space.config, "dense_head", None) is None else 4)
            extracted = supernet.extract(architecture)
            torch.testing.assert_close(outputs, extracted(images), rtol=1e-5, atol=1e-5)
