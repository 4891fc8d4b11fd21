"""Source of the kernels of a fused chain: generated from its steps, and loaded from a file.

There are two layouts. A chain that keeps the pixels divides them and the channels into blocks. A
chain that reduces them has programs that each iterate over a part of an image; if an image has
several parts, a second kernel combines them, always in the same order.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hwnas.atomic import write_text
from hwnas.home import home
from hwnas.kernels.codegen.steps import ChainStep, Named, Operand, named_operands
from hwnas.kernels.operator import dtype_name

__all__ = ["digest", "loaded", "source_of"]

IMPORTED = {
    "hwnas.kernels.primitives.activations": ("activate",),
    "hwnas.kernels.codegen.expressions": ("largest", "normalized", "quantized", "softmaxed"),
}
SHAPES = {
    "value": "like x",
    "image": "(images, CHANNELS)",
    "channel": "(CHANNELS,)",
    "number": "a number",
}

KEEPING = '''
@triton.jit
def fused_kernel(
    x,  # (images, pixels, CHANNELS){arguments}
    y,  # like x
    rows,
    pixels,
    CHANNELS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program computes BLOCK_P pixels of BLOCK_C channels."""
    row = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)[:, None]
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    image = row // pixels
    inside = (row < rows) & (channel < CHANNELS)
    place = row * CHANNELS + channel{channels}
    v = tl.load(x + place, mask=inside, other=0).to(tl.float32){steps}
    tl.store(y + place, v.to(y.dtype.element_ty), mask=inside)
'''

REDUCING = '''
@triton.jit
def fused_kernel(
    x,  # (images, pixels, CHANNELS){arguments}
    y,  # (images, CHANNELS), or (images, PARTS, CHANNELS) where there are several
    pixels,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program reduces every PARTS-th block of the pixels of an image, for BLOCK_C channels."""
    image = tl.program_id(0) // PARTS
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]{channels}
    total = tl.full((BLOCK_P, BLOCK_C), {start}, tl.float32)
    for first in range(tl.program_id(0) % PARTS * BLOCK_P, pixels, PARTS * BLOCK_P):
        pixel = first + tl.arange(0, BLOCK_P)[:, None]
        inside = (pixel < pixels) & (channel < CHANNELS)
        place = (image * pixels + pixel) * CHANNELS + channel
        v = tl.load(x + place, mask=inside, other=0).to(tl.float32){steps}
        total = {joined}
    v = {collapsed}{whole}
    place = tl.program_id(0) * CHANNELS + channel
    tl.store(y + place, v.to(y.dtype.element_ty), mask=channel < CHANNELS)


@triton.jit
def finish_kernel(
    parts,  # (images, PARTS, CHANNELS){last_arguments}
    y,  # (images, CHANNELS)
    pixels,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program puts the parts of an image together, for BLOCK_C channels."""
    image = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    part = image * PARTS + tl.arange(0, PARTS)[:, None]
    total = tl.load(parts + part * CHANNELS + channel, mask=channel < CHANNELS, other=0)
    v = {collapsed}{last}
    tl.store(y + image * CHANNELS + channel, v.to(y.dtype.element_ty), mask=channel < CHANNELS)
'''


def digest(source: str) -> str:
    """Return the digest of a source, which names its file."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def source_of(steps: tuple[ChainStep, ...]) -> str:
    """Return the source with ``fused_kernel``, and ``finish_kernel`` if pixels are reduced."""
    named = named_operands(steps)
    cut = next((place for place, step in enumerate(steps) if step.reduction), len(steps))
    fields = {"arguments": _arguments(named), "channels": _channels(named)}
    if cut == len(steps):
        body = KEEPING.format(**fields, steps=_lines(steps, 0, 4))
    else:
        after = {name: there for name, there in named.items() if there[0] >= cut}
        last = _lines(steps[cut:], cut, 4)
        whole = "\n    if PARTS == 1:" + _lines(steps[cut:], cut, 8) if "v = " in last else last
        fields |= {"last": last, "whole": whole, "last_arguments": _arguments(after)}
        fields |= vars(steps[cut].reduction)
        body = REDUCING.format(**fields, steps=_lines(steps[:cut], 0, 8))
    return _head(steps, body) + body


def loaded(source: str, folder: Path | None = None) -> ModuleType:
    """Return a module of this source, loaded from a file, where Triton reads the text of functions.

    Args:
        source: Source of the module.
        folder: Folder of the files; ``$HWNAS_HOME/kernels`` if None.

    Raises:
        StorageError: The file cannot be written.
    """
    name = f"fused_{digest(source)}"
    path = (folder or home() / "kernels") / f"{name}.py"
    if not path.is_file() or path.read_bytes() != source.encode():
        write_text(path, source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _head(steps: tuple[ChainStep, ...], body: str) -> str:
    """Return the docstring and the imports."""
    titles = "; ".join(map(_title, steps))
    lines = [f'"""{titles}: fused."""', "", "import triton", "import triton.language as tl"]
    imports = [
        f"from {module} import {', '.join(used)}"
        for module, names in IMPORTED.items()
        if (used := [name for name in names if f"{name}(" in body])
    ]
    return "\n".join([*lines, *([""] if imports else []), *imports, "", ""])


def _title(step: ChainStep) -> str:
    return step.name if step.gives is None else f"{step.name} to {dtype_name(step.gives)}"


def _arguments(named: Named) -> str:
    """Return the parameters of a kernel, one a line."""
    shapes = {name: SHAPES[operand.per] for name, (_, operand) in named.items()}
    return "".join(f"\n    {name},  # {shape}" for name, shape in shapes.items())


def _channels(named: Named) -> str:
    """Return the loads of operands that are read once for all pixels."""
    names = [name for name, (_, operand) in named.items() if operand.per == "channel"]
    load = "tl.load({0} + channel, mask=channel < CHANNELS, other=0).to(tl.float32)"
    return "".join(f"\n    {name} = {load.format(name)}" for name in names)


def _lines(steps: Sequence[ChainStep], first: int, indent: int) -> str:
    """Return the lines of steps, numbered from ``first``; a comment names each step."""
    start = "\n" + " " * indent
    text = ""
    for place, step in enumerate(steps, first):
        text += f"{start}# step {place}: {_title(step)}"
        if step.expression != "v":
            values = {o.name: _value(o, f"{o.name}_{place}") for o in step.operands}
            text += f"{start}v = {step.expression.format(**values)}"
    return text


def _value(operand: Operand, name: str) -> str:
    """Return an operand as it stands in an expression."""
    offset = {"value": "place", "image": "image * CHANNELS + channel"}.get(operand.per)
    if offset is None:
        return name
    return f"tl.load({name} + {offset}, mask=inside, other=0).to(tl.float32)"
