"""Contents of a file with a kernel or a reference, read without running it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hwnas.errors import ConfigError
from hwnas.kernels.operator import Sizes
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.verifier.wire import DTYPES
from hwnas.plugin import closest

__all__ = [
    "KernelRules",
    "KernelUnderTest",
    "parsed",
    "read_candidate",
    "read_rules",
    "refuse_signature",
]

_LARGEST = 2**20  # bytes of the largest file
_MOST_SIZE = 2**31 - 1
_RULES = ("reference", "inputs", "sizes", "dtypes")


@dataclass(frozen=True)
class KernelUnderTest:
    """Kernel that is to be verified.

    Attributes:
        name: File or operator, as the user gave it.
        path: File with a function ``run``; None for an operator of hwnas.
        operator: Operator whose reference gives the expected outputs; None if the user's own rules
            give them.
        tree: Syntax tree of the file.
        beside: Files of the same folder that the file imports.
    """

    name: str
    path: Path | None
    operator: str | None
    tree: ast.Module | None = None
    beside: tuple[Path, ...] = ()


@dataclass(frozen=True)
class KernelRules:
    """Rules for a right kernel, as a user's file states them.

    Attributes:
        path: File with ``reference(**inputs)`` and ``inputs(sizes, dtype, generator)``.
        sizes: Sizes at which a kernel must be right, and near which others are tried.
        dtypes: Types that a kernel must accept.
        options: Known values of the inputs that are not tensors, by name.
        listed: Names of the inputs whose values the file lists.
    """

    path: Path
    sizes: tuple[Sizes, ...]
    dtypes: tuple[torch.dtype, ...]
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)
    listed: tuple[str, ...] = ()


def read_candidate(source: str) -> KernelUnderTest:
    """Return the kernel that the name of a file or operator stands for.

    Raises:
        ConfigError: There is no such file or operator, the file is not Python (the message has the
            line), or it has no ``run``.
    """
    if source in OPERATORS:
        return KernelUnderTest(source, None, source)
    path = Path(source)
    if not path.suffix and not path.exists():
        raise ConfigError(
            f"{source!r} is neither a file nor an operator; {closest(source, OPERATORS)}"
        )
    tree = parsed(path)
    names = _top_level(tree)
    if "run" not in names:
        raise ConfigError(
            f"{path} has no function `run`; define one that takes the inputs of the reference, by "
            "name, and returns the output or a tuple of outputs"
        )
    operator = _literal(path, names, "operator") if "operator" in names else None
    if operator is not None and operator not in list(OPERATORS):
        raise ConfigError(
            f"{path}: unknown operator {operator!r}; {closest(str(operator), OPERATORS)}"
        )
    path = path.resolve()
    return KernelUnderTest(source, path, operator, tree, tuple(_beside(path, tree, {path})))


def read_rules(path: Path) -> KernelRules:
    """Return the rules that a file states.

    Raises:
        ConfigError: Something is missing, or sizes and dtypes are not valid literals.
    """
    tree = parsed(path)
    names = _top_level(tree)
    missing = [name for name in _RULES if name not in names]
    if missing:
        raise ConfigError(
            f'{path} has no {", ".join(missing)}; it needs `operator = "<name>"`, one of '
            f"{', '.join(OPERATORS)}, or {', '.join(_RULES)} of its own"
        )
    sizes, dtypes = _literal(path, names, "sizes"), _literal(path, names, "dtypes")
    listed = isinstance(sizes, tuple | list) and bool(sizes)
    if not listed or not all(_are_sizes(each) and set(each) == set(sizes[0]) for each in sizes):
        raise ConfigError(
            f"{path}: sizes have the form ({{'rows': 7, 'columns': 33}},), not {sizes!r}"
        )
    named = isinstance(dtypes, tuple | list)
    unknown = [name for name in dtypes if name not in list(DTYPES)] if named else dtypes
    if unknown or not dtypes:
        raise ConfigError(
            f"{path}: dtypes {unknown} are not supported; expected some of {', '.join(DTYPES)}"
        )
    options = _literal(path, names, "options") if "options" in names else {}
    if not isinstance(options, dict) or not all(map(_is_option, options.items())):
        raise ConfigError(
            f"{path}: options have the form {{'activation': ('none', 'relu')}}, not {options!r}"
        )
    types = tuple(DTYPES[name] for name in dict.fromkeys(dtypes))
    known = _compared_with(tree) | options
    return KernelRules(path.resolve(), tuple(sizes), types, known, tuple(options))


def refuse_signature(candidate: KernelUnderTest, inputs: Sequence[str]) -> None:
    """Refuse a function ``run`` that cannot be called with the inputs by their names.

    Raises:
        ConfigError: The function takes other inputs; the message lists both.
    """
    run = None if candidate.tree is None else _top_level(candidate.tree)["run"]
    if not isinstance(run, ast.FunctionDef) or run.decorator_list:
        return
    of = run.args
    named = [each.arg for each in (*of.args, *of.kwonlyargs)]
    optional = [each.arg for each in (of.args + of.posonlyargs)[len(of.args) - len(of.defaults) :]]
    optional += [
        each.arg
        for each, default in zip(of.kwonlyargs, of.kw_defaults, strict=True)
        if default is not None
    ]
    missing = [] if of.kwarg else [name for name in inputs if name not in named]
    unknown = [name for name in named if name not in inputs and name not in optional]
    unknown += [each.arg for each in of.posonlyargs]
    if missing or unknown:
        raise ConfigError(
            f"{candidate.name}, line {run.lineno}: `run` takes ({', '.join(named)}); it is called "
            f"with ({', '.join(inputs)}) by name"
        )


def _is_option(named: tuple[Any, Any]) -> bool:
    """Return whether the values of a name can be sent to another process."""
    name, values = named
    return (
        isinstance(name, str)
        and isinstance(values, tuple | list)
        and all(value is None or isinstance(value, bool | int | float | str) for value in values)
    )


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(
            isinstance(k, str) and type(v) is int and 0 <= v <= _MOST_SIZE for k, v in value.items()
        )
    )


def _compared_with(tree: ast.Module) -> dict[str, list[Any]]:
    """Return, for each name in a file, constants it is compared with and keys it may look up."""
    found: dict[str, list[Any]] = {}
    for node in ast.walk(tree):
        looked_up, table = None, None
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for name in [side.id for side in sides if isinstance(side, ast.Name)]:
                found.setdefault(name, []).extend(_constants(*sides))
        elif isinstance(node, ast.Match) and isinstance(node.subject, ast.Name):
            cases = [case.pattern for case in node.cases]
            found.setdefault(node.subject.id, []).extend(_constants(*cases))
        elif isinstance(node, ast.Subscript):
            looked_up, table = node.slice, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            asked = node.args[:1] if node.func.attr == "get" else []
            looked_up, table = asked[0] if asked else None, node.func.value
        if isinstance(looked_up, ast.Name):
            found.setdefault(looked_up.id, []).extend(_keys(table, tree))
    return found


def _keys(table: ast.AST | None, tree: ast.Module) -> list[str]:
    """Return the texts that are keys of a table; of all tables in the file if it is unknown."""
    if isinstance(table, ast.Name):
        table = _top_level(tree).get(table.id, table)
    tables = [table] if isinstance(table, ast.Dict) else ast.walk(tree)
    keys = [key for each in tables if isinstance(each, ast.Dict) for key in each.keys]
    texts = [key.value for key in keys if isinstance(key, ast.Constant)]
    return [text for text in texts if isinstance(text, str)]


def _constants(*nodes: ast.AST) -> list[str | int]:
    """Return the texts and integers that are literals in parts of a file."""
    every = [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [each.value for each in every if isinstance(each.value, str | int)]


def _beside(path: Path, tree: ast.Module, known: set[Path]) -> Iterator[Path]:
    """Yield the files of the same folder that a file imports, directly or indirectly."""
    for node in ast.walk(tree):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            other = (path.parent / f"{name.split('.')[0]}.py").resolve()
            if other not in known and other.is_file():
                known.add(other)
                yield other
                yield from _beside(other, parsed(other), known)


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, without running it.

    Raises:
        ConfigError: The file cannot be read or is not Python; the message has the line.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"cannot read {path}: it is not a file")
        if path.exists() and path.stat().st_size > _LARGEST:
            raise ConfigError(f"{path} is too large: it has more than {_LARGEST:,} bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
            compile(tree, str(path), "exec")
        return tree
    except ConfigError:
        raise
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""  # null bytes have no line
        raise ConfigError(f"{path}{line}: {error.msg}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not Python source: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} is not Python source: it is nested too deeply") from error


def _top_level(tree: ast.Module) -> dict[str, ast.AST]:
    """Return what a file binds at its top level, by name."""
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
    except (ValueError, TypeError, RecursionError, MemoryError, SyntaxError) as error:
        raise ConfigError(
            f"{path}, line {node.lineno}: {name} has to be a literal, because the file is read "
            "without running it"
        ) from error
