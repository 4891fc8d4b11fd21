"""What a file with a kernel holds, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hwnas.errors import ConfigError
from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.operator import Sizes
from hwnas.kernels.verifier.wire import DTYPES
from hwnas.plugin import closest

__all__ = ["Candidate", "Rules", "read_candidate", "read_rules"]

_RULES = ("reference", "inputs", "sizes", "dtypes")


@dataclass(frozen=True)
class Candidate:
    """What is to be verified.

    Attributes:
        name: As the user gave it.
        path: A file with a function ``run``; None for an operator of hwnas.
        operator: Whose reference tells what is right; None where rules of the user's own do.
    """

    name: str
    path: Path | None
    operator: str | None


@dataclass(frozen=True)
class Rules:
    """What is right, as a file of the user's own says.

    Attributes:
        path: It has ``reference(**inputs)`` and ``inputs(sizes, dtype, generator)``.
        sizes: At which a kernel must be right, and near which others are tried.
        dtypes: That it must take.
    """

    path: Path
    sizes: tuple[Sizes, ...]
    dtypes: tuple[torch.dtype, ...]


def read_candidate(source: str) -> Candidate:
    """What a file's name, or an operator's, stands for.

    Raises:
        ConfigError: There is no such file or operator, it is no Python (the message has the line),
            or it has no ``run``.
    """
    if source in OPERATORS:
        return Candidate(source, None, source)
    path = Path(source)
    if not path.suffix and not path.exists():
        raise ConfigError(f"{source!r} is no file and no operator; {closest(source, OPERATORS)}")
    names = _top_level(path)
    if "run" not in names:
        raise ConfigError(
            f"{path} has no function `run`; it takes the inputs of its reference, by name, and "
            "returns the output or a tuple of them"
        )
    operator = _literal(path, names, "operator") if "operator" in names else None
    if operator is not None and operator not in OPERATORS:
        raise ConfigError(f"{path}: operator {operator!r}: {closest(str(operator), OPERATORS)}")
    return Candidate(source, path.resolve(), operator)


def read_rules(path: Path) -> Rules:
    """What a file says of what is right.

    Raises:
        ConfigError: Something is missing, or sizes and dtypes are not written out.
    """
    names = _top_level(path)
    missing = [name for name in _RULES if name not in names]
    if missing:
        raise ConfigError(
            f'{path} has no {", ".join(missing)}; it needs `operator = "<name>"`, one of '
            f"{', '.join(OPERATORS)}, or {', '.join(_RULES)} of its own"
        )
    sizes, dtypes = _literal(path, names, "sizes"), _literal(path, names, "dtypes")
    if not sizes or not all(_are_sizes(each) for each in sizes):
        raise ConfigError(f"{path}: sizes are like ({{'rows': 7, 'columns': 33}},), not {sizes!r}")
    unknown = [name for name in dtypes if name not in DTYPES]
    if unknown or not dtypes:
        raise ConfigError(f"{path}: dtypes {unknown} are not some of {', '.join(DTYPES)}")
    return Rules(path.resolve(), tuple(sizes), tuple(DTYPES[name] for name in dtypes))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(k, str) and isinstance(v, int) for k, v in value.items()
    )


def _top_level(path: Path) -> dict[str, ast.AST]:
    """What the file binds at its top level, by name."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""  # null bytes are on none
        raise ConfigError(f"{path}{line}: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no Python source: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    names: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            names[node.target.id] = node.value
    return names


def _literal(path: Path, names: Mapping[str, ast.AST], name: str) -> Any:
    node: Any = names[name]
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {node.lineno}: {name} has to be written out, since it is read without "
            "running the file"
        ) from error
