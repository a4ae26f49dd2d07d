"""The reference has every command, event, metric, span, and event that is logged."""

from __future__ import annotations

import re

import pytest

from docs.tables.commands import commands
from docs.tables.logs import MEANINGS, logged
from docs.tables.metrics import ATTRIBUTES, SPANS, attributes_in_code
from tests.documents.pages import ROOT


@pytest.mark.parametrize("name", commands())
def test_every_argument_and_option_of_a_command_has_a_help(name: str) -> None:
    command = commands()[name]
    assert command.help
    assert [one.name for one in command.params if not (one.help or one.hidden)] == []


def test_every_event_that_is_logged_is_documented_and_no_other() -> None:
    assert set(logged()) == set(MEANINGS)


def test_no_event_is_logged_in_a_way_that_the_reference_cannot_see() -> None:
    # An event's name that is no argument of a call which logs: it would be missing.
    hidden = set()
    names = "|".join(map(re.escape, MEANINGS))
    for file in sorted((ROOT / "llmsession").rglob("*.py")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if re.search(r"\b(log|logger|_log|trouble|bug)\b", line):
                hidden |= set(re.findall(r"\"([a-z_]+\.(?!py|db|md|toml|log)[a-z_]+)\"", line))
    assert names
    assert hidden - set(MEANINGS) == set()


def test_every_span_and_attribute_is_documented_and_no_other() -> None:
    assert attributes_in_code() == set(ATTRIBUTES)
    source = (ROOT / "llmsession/transport/hosting/tracing.py").read_text(encoding="utf-8")
    started = re.findall(r"start_span\(\s*f?\"(\w+)", source)
    assert started == [name.split()[0] for name in ("invoke_agent", "execute_tool", "chat")]
    assert {name.split()[0] for name in SPANS} == set(started)
