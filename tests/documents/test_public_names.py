"""Every public name has a docstring, and stands in the reference of the API."""

from __future__ import annotations

import inspect
import re

import pytest

from docs.tables.public import constant_doc, public_names
from tests.documents.pages import ROOT, text_of

NAMES = public_names()
_MODULE = re.compile(r"^\.\. currentmodule:: (\S+)")
_ENTRY = re.compile(r"^\.\. auto(?:class|function|data|exception):: (\S+)")


def in_the_reference() -> set[str]:
    """The paths of everything that the pages of the API have."""
    found = set()
    for page in sorted((ROOT / "docs" / "reference" / "api").glob("*.md")):
        module = ""
        for line in text_of(page).splitlines():
            if named := _MODULE.match(line):
                module = named[1]
            elif entry := _ENTRY.match(line):
                found.add(f"{module}.{entry[1]}")
    return found


@pytest.mark.parametrize("path", NAMES)
def test_a_public_name_has_a_docstring(path: str) -> None:
    value = NAMES[path]
    if inspect.isclass(value):
        assert vars(value).get("__doc__")
    elif inspect.isroutine(value):
        assert value.__doc__
    else:
        assert constant_doc(path.rpartition(".")[2], value), "write a text below its line"


def methods(kind: type) -> dict[str, bool]:
    """The public methods and properties in the body of *kind*: has each a docstring?"""
    kinds = (property, classmethod, staticmethod)
    return {
        name: bool(inspect.getdoc(getattr(kind, name)))
        for name, member in vars(kind).items()
        if not name.startswith(("_", "test_"))
        and (inspect.isroutine(member) or isinstance(member, kinds))
    }


def test_a_public_method_has_a_docstring_here_or_where_it_is_declared() -> None:
    found = [(path, methods(kind)) for path, kind in NAMES.items() if inspect.isclass(kind)]
    # A store has the methods of ``Store``, and an interface those of the classes that keep it.
    documented = {name for _, has in found for name, is_documented in has.items() if is_documented}
    bare = [f"{path}.{name}" for path, has in found for name in has if name not in documented]
    assert bare == []


def test_every_public_name_is_in_the_reference() -> None:
    missing = sorted(NAMES.keys() - in_the_reference())
    assert missing == [], "add them to a page of docs/reference/api/"
