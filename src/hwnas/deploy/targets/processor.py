"""Model and instruction set of this machine's processor, as the system reports them."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["cpu_fields", "instruction_flags", "sums_saturate"]

_INFO = Path("/proc/cpuinfo")
_X86 = frozenset({"x86_64", "amd64", "i386", "i686", "x86"})
_EXACT = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "avx10.1"})


def cpu_fields(info: Path = _INFO) -> dict[str, str]:
    """Return what Linux reports about the first core, by name; empty if it reports nothing."""
    fields: dict[str, str] = {}
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    return fields


def instruction_flags(info: Path = _INFO) -> frozenset[str]:
    """Return the names of the processor's instruction set extensions, as Linux names them."""
    fields = cpu_fields(info)
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def sums_saturate(flags: frozenset[str] | None = None, machine: str | None = None) -> bool:
    """Return whether int8 layers may compute wrong sums on a processor.

    Without VNNI, x86 multiplies unsigned by signed bytes with VPMADDUBSW, which adds two products
    in 16 bits and saturates: 2 x 255 x 127 is 64,770, but the largest value is 32,767. ONNX Runtime
    and oneDNN both use it. ARM processors accumulate in 32 bits.

    Args:
        flags: Instruction set flags of the processor; those of this machine if None. If none are
            known, the processor counts as having none.
        machine: Machine type as from `platform.machine`; that of this machine if None.
    """
    if (machine or platform.machine()).lower() not in _X86:
        return False
    return not _EXACT & (instruction_flags() if flags is None else flags)
