"""Static check for what a kernel's file uses although no kernel needs it.

The file is read without running it. Modules, their members and special names are allowed only if
kernels are known to need them. Builtins and attributes that reach beyond a kernel are forbidden.
Each finding is a reason to refuse the file, whatever the file does with it.
"""

from __future__ import annotations

import ast
import importlib
import sys
import types
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, TypeGuard

__all__ = ["suspicious"]

_MODULES = frozenset(
    {
        "__future__", "abc", "collections", "collections.abc", "contextlib", "copy", "dataclasses",
        "enum", "functools", "itertools", "logging", "math", "numbers", "numpy", "operator", "os",
        "torch", "torch.cuda", "torch.fft", "torch.linalg", "torch.nn", "torch.nn.functional",
        "torch.special", "triton", "triton.language", "triton.language.core",
        "triton.language.extra", "triton.language.extra.libdevice", "triton.language.math",
        "triton.language.standard", "triton.tools", "triton.tools.tensor_descriptor", "typing",
        "typing_extensions", "warnings", "torch.backends", "torch.backends.cuda",
        "torch.backends.cudnn", "torch.backends.cuda.matmul", "numpy.linalg",
        "triton.language.semantic", "triton.language.random", "torch.autograd",
    }
)  # fmt: skip
# Allowed members of modules that hold more than kernels need; of other modules, public members.
_MEMBERS = {
    "logging": {"getLogger", "debug", "info", "warning", "error", "DEBUG", "INFO", "WARNING"},
    "warnings": {"warn", "catch_warnings", "simplefilter", "filterwarnings"},
    "torch.autograd": {"Function"},
}
_BUILTINS = frozenset(
    {
        "__import__", "breakpoint", "compile", "delattr", "dir", "eval", "exec", "globals", "help",
        "id", "input", "locals", "memoryview", "open", "vars", "__builtins__", "__loader__",
        "__spec__", "__file__", "__package__", "__cached__", "__path__",
    }
)  # fmt: skip
# Forbidden on any object: they reach files, other code, other processes, the stack or referrers.
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
        "get_type_hints", "ForwardRef", "singledispatch", "singledispatchmethod", "make_dataclass",
        "findCaller", "makeRecord", "addFilter", "addHandler", "redirect_stdout", "cache_info",
        "redirect_stderr", "get_num_threads", "get_num_interop_threads", "is_built", "JITFunction",
        "KernelInterface", "knobs",
    }
)  # fmt: skip
_DUNDERS = frozenset(
    {"__name__", "__init__", "__doc__", "__all__", "__call__", "__enter__", "__exit__", "__len__"}
    | {"__getitem__", "__iter__", "__post_init__", "__repr__", "__version__"}
    | {"__contains__", "__eq__", "__hash__", "__version_info__", "__slots__", "__new__"}
)
_LITERAL_ONLY = ("getattr", "hasattr", "setattr")
# Warnings that are recorded or become errors name the code that led to them.
_DIRECTLY = ("warnings.catch_warnings", "warnings.simplefilter", "warnings.filterwarnings")
_INSTALLED = ("torch", "triton", "numpy", "hwnas")
_TOPS = {name.split(".")[0] for name in _MODULES} | {"hwnas"}


def suspicious(tree: ast.Module, beside: Collection[str] = ()) -> list[str]:
    """Return what a file uses that no kernel needs, as texts with lines, each once.

    Args:
        tree: Syntax tree of the file.
        beside: Names of modules in the same folder, which are checked as well.
    """
    return list(
        dict.fromkeys(f"line {line} {text}" for line, text in _Reader(tree, beside).found())
    )


class _Reader:
    def __init__(self, tree: ast.Module, beside: Collection[str]) -> None:
        self._tree, self._beside = tree, beside
        self._modules: dict[str, str] = {}  # modules, by the names that the file gives them
        self._parents = {child: n for n in ast.walk(tree) for child in ast.iter_child_nodes(n)}
        self._texts = set(self._docstrings())
        self._members: dict[str, str] = {}  # likewise, members of modules

    def found(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from ((node.lineno, text) for text in self._imports(node))
        self._name_modules()
        for node in ast.walk(self._tree):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.Attribute | ast.Name):
                yield from ((line, text) for text in self._module_handed_on(node))
            if isinstance(node, ast.Attribute):
                yield from ((line, text) for text in self._attribute(node))
            elif isinstance(node, ast.Name):
                yield from ((line, text) for text in self._name(node))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((line, text) for text in self._text(node))
            elif isinstance(node, ast.MatchClass):
                yield from ((line, f"uses {n}") for n in node.kwd_attrs if _is_hidden(n))
            elif isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
                yield line, "uses asynchronous code"
            elif isinstance(node, ast.Call):
                yield from ((line, text) for text in self._call(node))

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
                name = alias.name if alias.asname else alias.name.split(".")[0]
                self._modules[alias.asname or name] = _true_name(name)
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
                yield from self._module(_true_name(whole))
                self._modules[alias.asname or alias.name] = _true_name(whole)
            elif not _is_member(node.module or "", alias.name) or whole in _DIRECTLY:
                yield f"imports {whole}"
            else:
                self._members[alias.asname or alias.name] = whole

    def _module(self, name: str) -> Iterator[str]:
        if not _is_ours(name) and name.split(".")[0] not in self._beside and name not in _MODULES:
            yield f"imports {name}"

    def _name_modules(self) -> None:
        """Find assignments that give modules other names."""
        known = -1
        while known < len(self._modules):
            known = len(self._modules)
            for node in ast.walk(self._tree):
                if isinstance(node, ast.Assign) and (name := self._module_of(node.value)):
                    for target in node.targets:
                        if isinstance(target, ast.Name):
                            self._modules.setdefault(target.id, name)

    def _module_of(self, node: ast.AST) -> str | None:
        """Return the name of the module that an expression stands for, or None."""
        whole = self._resolved(node)
        return _true_name(whole) if whole is not None and _is_module(whole) else None

    def _module_handed_on(self, node: ast.Attribute | ast.Name) -> Iterator[str]:
        """Yield a module that is handed on, because its use elsewhere cannot be analysed."""
        if not isinstance(node.ctx, ast.Load) or (name := self._module_of(node)) is None:
            return
        parent = self._parents.get(node)
        named = isinstance(parent, ast.Assign) and all(
            isinstance(target, ast.Name) for target in parent.targets
        )
        read = isinstance(parent, ast.Attribute) or named
        if not read and not (_is_lookup(parent) and parent.args[0] is node):
            yield f"passes on the module {name}"

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        if not self._sets_environment(node):
            yield from self._looked_up(node.value, node.attr)
        whole = self._resolved(node)
        parent = self._parents.get(node)
        directly = isinstance(parent, ast.Call) and parent.func is node
        if node.attr == "format" and whole is None and not directly:
            yield "formats with a text that is not a literal"
        if whole in _DIRECTLY and not (directly and _is_quiet(parent, whole)):
            yield f"uses {whole}, other than to silence warnings"
        if whole is not None and isinstance(node.ctx, ast.Store | ast.Del):
            yield f"replaces {whole}"

    def _looked_up(self, owner: ast.AST, name: str) -> Iterator[str]:
        module = self._module_of(owner)
        is_load = name == "load" and (module is None or module.startswith("triton"))
        if _is_hidden(name) and not is_load:
            yield f"uses {name}"
        if module is None:
            return
        whole = f"{module}.{name}"
        if _is_module(whole):
            true = _true_name(whole)
            if true not in _MODULES and not _is_ours(true):
                yield f"uses {whole}"
        elif not _is_member(module, name):
            yield f"uses {whole}"

    def _name(self, node: ast.Name) -> Iterator[str]:
        parent = self._parents.get(node)
        if node.id in _BUILTINS and isinstance(node.ctx, ast.Load):
            yield f"uses {node.id}"
        elif node.id == "__name__" and not _is_usual(parent):
            yield "uses __name__"
        elif node.id in _LITERAL_ONLY and not (
            isinstance(parent, ast.Call) and parent.func is node
        ):
            yield f"uses {node.id} without a literal name"

    def _call(self, node: ast.Call) -> Iterator[str]:
        if isinstance(node.func, ast.Name) and node.func.id in _LITERAL_ONLY:
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant):
                yield from self._looked_up(node.args[0], str(name.value))
            else:
                yield f"uses {node.func.id} without a literal name"
            if node.func.id == "setattr" and self._resolved(node.args[0]) is not None:
                yield "replaces attributes that others use"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
            text = node.func.value
            if not isinstance(text, ast.Constant) and self._resolved(node.func) is None:
                yield "formats with a text that is not a literal"
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) > 1:
            yield "makes classes by calling type"

    def _text(self, node: ast.Constant) -> Iterator[str]:
        if node in self._texts or not isinstance(node.value, str):
            return
        text: str = node.value
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
        hidden = [word for word in words if _is_hidden(word) and ("_" in word or word == text)]
        for word in hidden:
            if word not in ("load", "save", "dump", "sys", "system", "open"):
                yield f"contains the text {word!r}"
        if "interpret" in text.lower():
            yield f"contains the text {text!r}, perhaps to distinguish a check from real work"

    def _resolved(self, node: ast.AST) -> str | None:
        """Return the dotted name of a module, or of a member of one; None for anything else."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id, self._members.get(node.id))
        if isinstance(node, ast.Attribute):
            owner = self._resolved(node.value)
            if owner is not None and (_is_module(owner) or owner in _MODULES):
                return f"{_true_name(owner)}.{node.attr}"
        return None

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


def _is_hidden(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in _DUNDERS
    return name in _ATTRIBUTES


def _is_load(module: str, name: str) -> bool:
    return name == "load" and module.startswith("triton.language")


def _is_ours(name: str) -> bool:
    return name.startswith("hwnas.kernels.") and not name.startswith("hwnas.kernels.verifier")


def _is_usual(parent: ast.AST | None) -> bool:
    """Return whether a module's name is given to a logger, or compared with that of a script."""
    if isinstance(parent, ast.Compare):
        others = [parent.left, *parent.comparators]
        return any(isinstance(each, ast.Constant) and each.value == "__main__" for each in others)
    called = parent.func if isinstance(parent, ast.Call) else None
    return isinstance(called, ast.Attribute | ast.Name) and "getLogger" in ast.unparse(called)


def _is_lookup(node: ast.AST | None) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _LITERAL_ONLY
        and bool(node.args)
    )


def _is_quiet(call: ast.AST | None, function: str) -> bool:
    """Return whether a call neither records warnings nor turns them into errors."""
    if not isinstance(call, ast.Call):
        return False
    if function == "warnings.catch_warnings":
        return not call.args and not call.keywords
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and first.value != "error"


@lru_cache(maxsize=1024)
def _is_member(module: str, name: str) -> bool:
    """Return whether a member of a module is meant for the module's users."""
    if module in _MEMBERS:
        return name in _MEMBERS[module]
    if module.split(".")[0] in (*_INSTALLED, "os"):
        return module != "os"
    public = getattr(_found(module), "__all__", None)
    return name in public if public is not None else not name.startswith("_")


@lru_cache(maxsize=1024)
def _is_module(name: str) -> bool:
    """Return whether a dotted name is a module of the libraries that kernels use."""
    top = name.split(".")[0]
    if top not in _TOPS and name != top:
        return False
    return isinstance(_found(name), types.ModuleType) if top in _TOPS else name in sys.modules


@lru_cache(maxsize=1024)
def _true_name(name: str) -> str:
    """Return a module's own name if a dotted name is a module, else the dotted name."""
    found = _found(name) if name.split(".")[0] in _TOPS else None
    return found.__name__ if isinstance(found, types.ModuleType) else name


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
        except Exception:  # an attribute that is made on first use, such as Triton's driver
            return None
    return found
