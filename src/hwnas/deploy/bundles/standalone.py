"""Source code of hwnas's functions for use without hwnas: in model cards and runners.

Shipped code has to open and preprocess images exactly as `hwnas run` does, so it is generated from
the same functions and not written a second time.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

__all__ = ["IMAGE_IMPORTS", "standalone"]

IMAGE_IMPORTS = "from PIL import ExifTags, Image, ImageOps"
"""Import that the functions of `hwnas.deploy.bundles.image_file` need, besides NumPy as ``np``."""


def standalone(*functions: Callable[..., Any]) -> str:
    """Return source code that defines functions, and the functions of their modules that they need.

    Annotations, docstrings and comments are left out.

    Args:
        functions: Functions to convert. Apart from functions of their modules, they and these
            functions may use only builtins, and modules that the code is to import.
    """
    trees: dict[str, ast.FunctionDef] = {}
    waiting = [*functions]
    while waiting:
        each = waiting.pop()
        if each.__name__ not in trees:
            trees[each.__name__] = _bare(each)
            waiting += _needed(each, trees[each.__name__])
    return "\n\n\n".join(ast.unparse(tree) for tree in reversed(trees.values()))


def _bare(function: Callable[..., Any]) -> ast.FunctionDef:
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    tree.returns = None
    for argument in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        argument.annotation = None
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and any(isinstance(each, ast.AnnAssign) for each in value):
                setattr(node, name, [_without_annotation(each) for each in value])
    return tree


def _without_annotation(node: ast.AST) -> ast.AST:
    if not isinstance(node, ast.AnnAssign) or node.value is None:
        return node
    return ast.copy_location(ast.Assign([node.target], node.value), node)


def _needed(function: Callable[..., Any], tree: ast.FunctionDef) -> Iterator[FunctionType]:
    """Yield the functions of the same module that a function names."""
    known = vars(inspect.getmodule(function))
    for node in ast.walk(tree):
        found = known.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(found, FunctionType) and found.__module__ == function.__module__:
            yield found
