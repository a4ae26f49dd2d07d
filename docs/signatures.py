"""A Sphinx extension for the pages of the API: signatures as the source has them, and links.

autodoc shows the types of a signature with everything behind an alias: a union of twenty records
for ``Event``. Here a signature has the words of the source, and a link for each name of ours. An
alias that is not public is shown as what it stands for.
"""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Annotated, Any, get_origin

import msgspec
from docutils.nodes import Element, TextElement
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import stringify_annotation

import llmsession
from docs.tables.fields import fields
from docs.tables.public import constant_doc

__all__ = ["setup"]

MADE_BY_OTHERS = {
    "Connection", "LLMSession", "RemoteManager", "RemoteSession", "RemoteSubscription",
    "RemoteTurn", "Subscription", "TextStream", "Turn",
}  # fmt: skip
"""Classes that a user gets and never makes: their constructors are not public."""
_ALIASES = {*llmsession.__all__, "AppendResult", "StreamEvent", "Terminal", "Trigger"}
"""Aliases with an entry of their own; others are replaced by what they stand for."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", as_in_the_source)
    app.connect("autodoc-process-docstring", of_constants)
    app.connect("missing-reference", by_short_name)
    return {"parallel_read_safe": True}


def as_in_the_source(  # noqa: PLR0917  # as Sphinx calls it
    app: Sphinx, what: str, name: str, thing: Any, options: Any, written: str | None, returns: Any
) -> tuple[str, str] | None:
    """The signature of *thing*, with its annotations as the source has them."""
    if getattr(thing, "__name__", "") in MADE_BY_OTHERS:
        return "", ""
    if isinstance(thing, type) and issubclass(thing, msgspec.Struct):
        return _of_struct(thing), ""
    if written is None or not callable(thing):
        return None
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    module = getattr(thing, "__module__", "")
    plain = [
        parameter.replace(
            default=_Written(parameter.default)
            if parameter.default is not parameter.empty
            else parameter.empty,
            annotation=_annotation(parameter.annotation, module),
        )
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    result = _annotation(signature.return_annotation, module)
    arguments = stringify_signature(
        signature.replace(parameters=plain, return_annotation=signature.empty)
    )
    return arguments, "" if result is signature.empty or isinstance(thing, type) else result


def of_constants(  # noqa: PLR0917  # as Sphinx calls it
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Replace the docstring of a constant's class by the text below the constant."""
    if what == "data":
        lines[:] = constant_doc(name.rpartition(".")[2], thing).splitlines()


class _Written:
    """A default whose representation can be parsed as Python."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        text = repr(self.value)
        return getattr(self.value, "__qualname__", "...") if text.startswith("<") else text


def _of_struct(kind: type[msgspec.Struct]) -> str:
    by_name = {field.name: field for field in fields(kind)}
    shown = []
    for parameter in inspect.signature(kind).parameters.values():
        field = by_name[parameter.name]
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = f" = {field.default}" if field.default else ""
        shown.append(f"{field.name}: {_annotation(field.annotation, field.module)}{default}")
    return f"({', '.join(shown)})"


def _annotation(written: Any, module: str) -> Any:
    """An annotation, written in *module*, with whole paths, of which the last name is shown."""
    if not isinstance(written, str):
        return written
    try:
        tree = ast.parse(written, mode="eval")
    except SyntaxError:
        return written
    return ast.unparse(_Paths(vars(sys.modules[module])).visit(tree))


class _Paths(ast.NodeTransformer):
    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._path(node, self._names.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        module = self._names.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return self._path(node, getattr(module, node.attr, None))

    def _path(self, node: ast.Name | ast.Attribute, value: Any) -> ast.expr:
        name = node.id if isinstance(node, ast.Name) else node.attr
        if get_origin(value) is Annotated:
            value = value.__origin__
        elif value is None or (name in _ALIASES and not isinstance(value, type)):
            return ast.Name(name) if value is not None else node
        if not isinstance(value, type) and get_origin(value) is None:
            return node
        return ast.parse(stringify_annotation(value, "smart"), mode="eval").body


def by_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: TextElement
) -> Element | None:
    """Link a name that stands alone, such as ``Event``, to what is documented under it."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rpartition(".")[2]
    objects = env.domains.python_domain.objects
    # The shortest path is the one to import from; a class goes before an attribute of its name.
    found = sorted((name for name in objects if name.rpartition(".")[2] == last), key=len)
    documented = [name for name in found if objects[name].objtype not in ("attribute", "method")]
    if not documented:
        return None
    target = objects[documented[0]]
    return make_refnode(app.builder, node["refdoc"], target.docname, target.node_id, text)
