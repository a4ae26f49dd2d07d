"""Every error class, from its docstring: what it means, its cause, an example, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from docs.tables.markdown import paragraphs, table
from llmsession import errors
from llmsession.compaction import PairingError
from llmsession.errors import InvalidRequest, SessionError
from llmsession.transport.grpc.errors import status_code
from llmsession.transport.wire.errors import ERRORS, is_retryable

__all__ = ["PARTS", "error_classes", "overview", "sections"]

PARTS = ("Cause", "Example", "Remedy")
"""How the paragraphs of an error's docstring begin, after the first."""
_DEPENDS = {
    "ProviderError": "if `kind` is `retryable`",
    "SessionMoved": "if `address` is set",
    "StoreError": "if `committed` is `False`",
}


def error_classes() -> list[type[Exception]]:
    """Every public class of errors, each before its subclasses."""
    public = [getattr(errors, name) for name in errors.__all__]
    found = {kind for kind in [*public, PairingError] if isinstance(kind, type)}
    return [
        *_below(SessionError, found),
        *sorted(found - set(_below(SessionError, found)), key=str),
    ]


def _below(kind: type[Exception], found: set[type[Exception]]) -> Iterator[type[Exception]]:
    yield kind
    for subclass in kind.__subclasses__():
        if subclass in found:
            yield from _below(subclass, found)


def overview() -> str:
    """All classes as one table, indented as a tree."""
    rows = []
    for kind in error_classes():
        depth = sum(issubclass(base, SessionError) for base in kind.__mro__) - 1
        link = f"[`{kind.__name__}`](#{kind.__name__.lower()})"
        first = paragraphs(kind)[0].split(". ")[0].removesuffix(".")
        rows.append((f"{'&emsp;' * max(0, depth)}{link}", first))
    return table(("error", "meaning"), rows)


def sections() -> str:
    """A section for each class."""
    return "\n".join(_section(kind) for kind in error_classes())


def _section(kind: type[Exception]) -> str:
    first, *rest = paragraphs(kind)
    lines = [f"### {kind.__name__}", "", first, ""]
    for paragraph in rest:
        name, _, words = paragraph.partition(": ")
        lines += [f"* **{name}:** {words}" if name in PARTS else paragraph]
    return "\n".join([*lines, f"* **At a service:** {_at_a_service(kind)}", ""])


def _at_a_service(kind: type[Exception]) -> str:
    if kind is InvalidRequest:
        return "not sent; the turn fails with the cause `invalid_request`, and the session goes on."
    if not issubclass(kind, SessionError):
        return "not sent; it ends the session with `SessionClosed`."
    code = next(base.__name__ for base in kind.__mro__ if base.__name__ in ERRORS)
    status = status_code(ERRORS[code]).name
    return f"code `{code}`, gRPC status `{status}`, retryable: {_retryable(ERRORS[code])}."


def _retryable(kind: type[SessionError]) -> str:
    if kind.__name__ in _DEPENDS:
        return _DEPENDS[kind.__name__]
    return "yes" if is_retryable(kind.__new__(kind)) else "no"
