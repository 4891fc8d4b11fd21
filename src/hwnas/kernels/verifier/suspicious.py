"""What a kernel's file uses that no kernel needs, read without running it.

What is known to be needed is listed; the rest is a reason to refuse a file, whatever it does there.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any

__all__ = ["suspicious"]

_MODULES = frozenset(
    {
        "__future__", "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses",
        "enum", "functools", "itertools", "logging", "math", "numbers", "numpy", "operator", "os",
        "torch", "torch.cuda", "torch.fft", "torch.linalg", "torch.nn", "torch.nn.functional",
        "torch.special", "torch.autograd", "torch.amp", "triton", "triton.language",
        "triton.language.core",
        "triton.language.extra", "triton.language.extra.libdevice", "triton.language.math",
        "triton.language.standard", "triton.tools", "triton.tools.tensor_descriptor", "typing",
        "typing_extensions", "warnings", "torch.backends", "torch.backends.cuda",
        "torch.backends.cudnn", "torch.backends.cuda.matmul", "numpy.linalg",
        "triton.language.semantic", "triton.language.random",
    }
)  # fmt: skip
_BUILTINS = frozenset(
    {
        "__import__", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "globals", "help",
        "id", "input", "locals", "memoryview", "open", "vars", "__builtins__", "__loader__",
        "__spec__", "__file__", "__package__", "__cached__", "__path__",
    }
)  # fmt: skip
# Wherever they are looked up: files, other code, other processes, the stack, and what holds what.
_ATTRIBUTES = frozenset(
    {
        "DataSource", "UntypedStorage", "TypedStorage", "_C", "_dynamo", "_getframe", "ag_await",
        "ag_code", "ag_frame", "addaudithook", "attrgetter", "cr_await", "cr_code", "cr_frame",
        "cr_origin", "ctypes", "ctypeslib", "cpp_extension", "current_thread", "dlopen", "dump",
        "environb", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "fork", "format_map",
        "from_file", "fromfile", "genfromtxt", "get_objects", "get_referents", "get_referrers",
        "gi_code", "gi_frame", "gi_yieldfrom", "hub", "inspect", "load", "load_library", "loads",
        "loadtxt", "memmap", "methodcaller", "modules", "open_memmap", "popen", "save", "savetxt",
        "savez", "serialization", "share_memory_", "spawn", "sys", "system", "tb_frame", "tb_next",
        "tofile", "with_traceback", "_exit", "open_code", "untyped_storage", "typed_storage",
        "storage", "_typed_storage", "_version", "_base", "from_dlpack", "to_dlpack", "from_buffer",
        "is_built", "catch_warnings", "showwarning", "formatwarning", "JITFunction",
        "KernelInterface", "knobs",
    }
)  # fmt: skip
_DUNDERS = frozenset(
    {"__name__", "__init__", "__doc__", "__all__", "__call__", "__enter__", "__exit__", "__len__"}
    | {"__getitem__", "__iter__", "__post_init__", "__repr__", "__version__"}
    | {"__contains__", "__eq__", "__hash__", "__version_info__", "__slots__", "__new__"}
)
_LITERAL_ONLY = ("getattr", "hasattr", "setattr")
_ONLY_BY_NAME = ("os", "warnings")  # what of these is used has to be written out
_FILTER, _KIND = "warnings.filterwarnings", ("action", "message", "category")
_LOADS = ("tl", "language")  # `tl.load` is what kernels are made of


def suspicious(tree: ast.Module, beside: Collection[str] = ()) -> list[str]:
    """Return what is no part of a kernel, as texts with lines, each once.

    Args:
        tree: A file.
        beside: Names of modules that lie next to it and are looked at as well.
    """
    return list(
        dict.fromkeys(f"line {line} {text}" for line, text in _Reader(tree, beside).found())
    )


class _Reader:
    def __init__(self, tree: ast.Module, beside: Collection[str]) -> None:
        self._tree, self._beside = tree, beside
        self._modules: dict[str, str] = {}  # what names stand for
        self._parents = {child: n for n in ast.walk(tree) for child in ast.iter_child_nodes(n)}
        self._texts = set(self._docstrings())

    def found(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from ((node.lineno, text) for text in self._imports(node))
        for node in ast.walk(self._tree):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Attribute):
                yield from ((line, text) for text in self._attribute(node))
            elif isinstance(node, ast.Name):
                yield from ((line, text) for text in self._name(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((line, text) for text in self._text(node))
            elif isinstance(node, ast.MatchClass):
                yield from ((line, f"uses {n}") for n in node.kwd_attrs if _is_hidden(n))
            elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield line, "is asynchronous"
            elif isinstance(node, ast.Call):
                yield from ((line, text) for text in self._call(node))

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
                name = alias.name if alias.asname else alias.name.split(".")[0]
                self._modules[alias.asname or name] = name
            return
        if node.level:
            yield "imports from its own package"
            return
        yield from self._module(node.module or "")
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if alias.name == "*" and node.module not in self._beside:
                yield f"imports all of {node.module}"
            elif _is_hidden(alias.name) and not _is_load(node.module or "", alias.name):
                yield f"imports {whole}"
            elif _is_module(whole):
                yield from self._module(whole)
                self._modules[alias.asname or alias.name] = whole
            elif node.module in _ONLY_BY_NAME:
                yield f"imports {whole}"

    def _module(self, name: str) -> Iterator[str]:
        ours = name.startswith("hwnas.kernels.") and not name.startswith("hwnas.kernels.verifier")
        if name not in _MODULES and not ours and name.split(".")[0] not in self._beside:
            yield f"imports {name}"

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        if _is_hidden(node.attr) and not self._is_tl_load(node):
            yield f"uses {node.attr}"
        whole = self._resolved(node)
        if whole is None:
            return
        if (whole.startswith("os.") and not self._sets_environment(node)) or (
            _is_module(whole) and whole not in _MODULES and not whole.startswith("hwnas.")
        ):
            yield f"uses {whole}"
        if isinstance(node.ctx, ast.Store | ast.Del):
            yield f"replaces {whole}"
        parent = self._parents.get(node)
        if whole == _FILTER and not (isinstance(parent, ast.Call) and parent.func is node):
            yield f"hands on {whole}"

    def _name(self, node: ast.Name) -> Iterator[str]:
        parent = self._parents.get(node)
        if node.id in _BUILTINS and isinstance(node.ctx, ast.Load):
            yield f"uses {node.id}"
        elif node.id == "__name__" and not _is_usual(parent):
            yield "uses __name__"
        elif node.id in _LITERAL_ONLY and not (
            isinstance(parent, ast.Call) and parent.func is node
        ):
            yield f"uses {node.id} without a name that is written out"
        elif self._modules.get(node.id) in _ONLY_BY_NAME and not isinstance(parent, ast.Attribute):
            yield f"hands on {self._modules[node.id]}"

    def _call(self, node: ast.Call) -> Iterator[str]:
        if isinstance(node.func, ast.Name) and node.func.id in _LITERAL_ONLY:
            named = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
            if not named:
                yield f"uses {node.func.id} without a name that is written out"
            if node.func.id == "setattr" and self._resolved(node.args[0]) is not None:
                yield "replaces what others use"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            text = node.func.value
            if not isinstance(text, ast.Constant) and self._resolved(node.func) is None:
                yield "formats by a text that is not written out"
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) > 1:
            yield "makes classes"
        if self._resolved(node.func) == _FILTER and not _filters_by_kind(node):
            yield f"uses {_FILTER} by who warns"

    def _text(self, node: ast.Constant) -> Iterator[str]:
        if node in self._texts or not isinstance(node.value, str):
            return
        text: str = node.value
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
        hidden = [word for word in words if _is_hidden(word) and ("_" in word or word == text)]
        for word in hidden:
            if word not in ("load", "save", "dump", "sys", "system", "open"):
                yield f"has the text {word!r}"
        if "interpret" in text.lower():
            yield f"has the text {text!r}, as if it were to tell a check from real work"

    def _resolved(self, node: ast.AST) -> str | None:
        """The dotted name of what is in a module, or a module."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            if owner is not None and (_is_module(owner) or owner in _MODULES):
                return f"{owner}.{node.attr}"
        return None

    def _is_tl_load(self, node: ast.Attribute) -> bool:
        owner = self._resolved(node.value)
        return node.attr == "load" and (owner is None or owner.startswith("triton"))

    def _sets_environment(self, node: ast.Attribute) -> bool:
        parent = self._parents.get(node)
        return (
            node.attr == "environ"
            and isinstance(parent, ast.Subscript)
            and isinstance(parent.ctx, ast.Store)
        )

    def _docstrings(self) -> Iterator[ast.Constant]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield node.value


def _is_usual(parent: ast.AST | None) -> bool:
    """Whether a module's name is that of a logger, or compared with that of a script."""
    if isinstance(parent, ast.Compare):
        others = [parent.left, *parent.comparators]
        return any(isinstance(each, ast.Constant) and each.value == "__main__" for each in others)
    called = parent.func if isinstance(parent, ast.Call) else None
    return isinstance(called, ast.Attribute | ast.Name) and "getLogger" in ast.unparse(called)


def _filters_by_kind(call: ast.Call) -> bool:
    """Whether warnings are told apart by text and category, and not by the module of a caller."""
    return len(call.args) <= 3 and all(each.arg in _KIND for each in call.keywords)


def _is_hidden(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in _DUNDERS
    return name in _ATTRIBUTES


def _is_load(module: str, name: str) -> bool:
    return name == "load" and module.startswith("triton.language")


@lru_cache(maxsize=1024)
def _is_module(name: str) -> bool:
    """Whether a dotted name is that of a module, of the libraries that kernels use."""
    top, *rest = name.split(".")
    if top not in ("torch", "triton", "numpy", "os", "collections", "hwnas") and not rest:
        return name in sys.modules
    if top == "hwnas":
        return not rest or isinstance(_found(name), types.ModuleType)
    if top not in ("torch", "triton", "numpy", "os", "collections"):
        return False
    return isinstance(_found(name), types.ModuleType)


def _found(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception:
        pass
    top, *rest = name.split(".")
    found: Any = sys.modules.get(top)
    for part in rest:
        try:
            found = getattr(found, part, None)
        except Exception:  # what is made on first use, as Triton's driver
            return None
    return found
