"""Every setting is documented: fields, parameters, environment variables, options of policies."""

from __future__ import annotations

import re
import sys

import msgspec
import pytest

from docs.tables.configuration import STRUCTS, TABLES
from docs.tables.fields import fields
from llmsession.transport.hosting.config import (
    PREFIX,
    VARIABLES,
    LimitsTable,
    RetentionTable,
    ServerConfig,
    TlsTable,
)
from tests.documents.pages import ROOT, text_of

PAGE = ROOT / "docs" / "reference" / "configuration.md"
ALL: tuple[type[msgspec.Struct], ...] = (
    *STRUCTS,
    ServerConfig,
    TlsTable,
    LimitsTable,
    RetentionTable,
)
_VARIABLE = re.compile(r"[\"'](LLMSESSION_[A-Z_]+|XDG_[A-Z_]+|[A-Z]+_(?:API_KEY|BASE_URL))[\"']")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_field_of_a_configuration_says_what_it_does(kind: type[msgspec.Struct]) -> None:
    assert [field.name for field in fields(kind) if not field.words] == []


def test_every_struct_that_a_configuration_holds_has_a_table_of_its_own() -> None:
    structs = {struct for kind in ALL for struct in _structs(kind)}
    shown = {field for kind in ALL for field in kind.__mro__}
    assert {kind.__name__ for kind in structs - shown} == set()


def _structs(kind: type[msgspec.Struct]) -> set[type]:
    """The structs in the annotations of the fields of *kind*."""
    found = set()
    for field in fields(kind):
        names = vars(sys.modules[field.module])
        found |= {names.get(name) for name in re.findall(r"\w+", field.annotation)}
    return {one for one in found if isinstance(one, type) and issubclass(one, msgspec.Struct)}


def test_every_parameter_of_a_manager_says_what_it_does() -> None:
    rows = TABLES["SessionManager"]().splitlines()[2:]
    assert [row for row in rows if row.endswith("| |")] == []


def test_every_environment_variable_of_the_package_is_documented() -> None:
    read = set(VARIABLES)
    for file in (ROOT / "llmsession").rglob("*.py"):
        read |= set(_VARIABLE.findall(file.read_text(encoding="utf-8")))
    documented = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", text_of(PAGE)))
    assert read - documented == {PREFIX}
