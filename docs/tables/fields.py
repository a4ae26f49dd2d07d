"""The fields of structs: name, type, default, and the text below each in the source."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from docs.tables.markdown import table, text

__all__ = ["Field", "fields", "fields_table"]


class Field(NamedTuple):
    name: str
    annotation: str
    default: str
    """As it would be written; "" where a value is required."""
    words: str
    module: str
    """Where the annotation is written."""


def fields(kind: type[msgspec.Struct]) -> tuple[Field, ...]:
    """The fields of *kind*, those of its bases included."""
    written: dict[str, tuple[str, str, str]] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            written.update(_written(base))
    return tuple(
        Field(field.name, written[field.name][0], _default(field), *written[field.name][1:])
        for field in msgspec.structs.fields(kind)
    )


def _written(kind: type) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """The annotation and the text of each field in the source of *kind*."""
    body = _classes(kind.__module__).get(kind.__name__, [])
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            words = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = text(inspect.cleandoc(str(after.value.value)))
            annotation = ast.unparse(statement.annotation)
            yield statement.target.id, (annotation, words, kind.__module__)


@cache
def _classes(module: str) -> dict[str, list[ast.stmt]]:
    """The bodies of the classes of *module*."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    else:
        return ""
    return shown(value)


def shown(value: object) -> str:
    """A default as a reader would write it; a struct of defaults is its name."""
    if isinstance(value, msgspec.Struct):
        return f"{type(value).__name__}()"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:_}"
    return repr(value)


def fields_table(kind: type[msgspec.Struct]) -> str:
    """The fields of *kind* as a table."""
    rows = (
        (
            f"`{field.name}`",
            f"`{field.annotation}`",
            f"`{field.default}`" if field.default else "required",
            field.words,
        )
        for field in fields(kind)
    )
    return table(("field", "type", "default", "meaning"), rows)
