"""Words that this project once coined are not in what its users read: the field has its own.

Left out of the list are those that are plain English, or terms of the field, in other sentences:
act, answers, asked, at, brought, calm, carried, changes, checked, chosen, conflict, cut, due, each,
facts, feed, figures, findings, floor, found, frontier (Pareto's), frozen, given, hold and held,
keep, known, listener, lost, naming, noted, offer, owed, parts, patience, peek, pins, play, read,
reached, record, rest, returning, room (on a disk), said, seal (of cryptography), seen, settings,
shown, silence, span, spoken (a protocol is), stage (of a pipeline), standing, told, waiting,
wanted, watched, welcome (a message of the wire), worth, written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.tables.commands import commands
from docs.tables.public import constant_doc, public_names
from tests.documents.pages import name_of, pages, prose

COINED = {
    "audience": "subscribers",
    "births": "ranges of ids",
    "breach": "violation",
    "cast": "setup, tools and models",
    "commandbook": "idempotency keys",
    "desk": "responder",
    "faultbook": "fault schedule",
    "house": "task host, project",
    "hub": "subscriptions",
    "intake": "import",
    "ladder": "escalation",
    "letgo": "evicted",
    "(?:random|whole|a|each|one|all) li(?:fe|ves)": "run, session, incarnation",
    "lingering": "still running",
    "offloop": "in a worker thread",
    "overrun": "exceeded",
    "playbook": "script",
    "readback": "log reader",
    "rouse": "wake",
    "sameness": "difference of histories",
    "sealer": "signer",
    "sighting": "observed event",
    "stor(?:y|ies)": "schedule, input",
    "storm": "chaos phase",
    "surroundings": "services",
    "sweeper": "evictor",
    "tally": "counters",
    "told summaries": "summaries of the caller",
    "turnqueue": "queue of turns",
    "unspoken": "unrecorded usage",
    "verdict": "result of a check",
    "watchers": "subscribers",
}
"""A coined word, as a pattern -> what to write instead."""
EXCEPTIONS = {
    "CODE_OF_CONDUCT.md": {"breach"},  # of a rule: English
    "docs/contributing/soak.md": {"(?:random|whole|a|each|one|all) li(?:fe|ves)"},  # its column
    "README.md": {"stor(?:y|ies)"},  # the words of a test's name
}
_CODE = re.compile(r"``.+?``|`[^`\n]*`", re.DOTALL)


def docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the public names and of their methods."""
    for path, value in public_names().items():
        if not inspect.isclass(value):
            is_function = inspect.isroutine(value)
            doc = inspect.getdoc(value) if is_function else constant_doc(path.split(".")[-1], value)
            yield path, doc or ""
            continue
        yield path, inspect.getdoc(value) or ""
        for name in vars(value):
            if not name.startswith("_"):
                yield f"{path}.{name}", inspect.getdoc(getattr(value, name, None)) or ""


def coined(text: str) -> set[str]:
    """The coined words in *text*, but for its code."""
    text = _CODE.sub("", text)
    return {word for word in COINED if re.search(rf"\b{word}\b", text, re.IGNORECASE)}


@pytest.mark.parametrize("page", pages("words"), ids=name_of)
def test_a_page_has_no_coined_word(page: Path) -> None:
    found = coined(prose(page)) - EXCEPTIONS.get(name_of(page), set())
    assert {word: COINED[word] for word in found} == {}


def test_no_docstring_of_a_public_name_has_a_coined_word() -> None:
    found = {path: words for path, text in docstrings() if (words := coined(text))}
    assert found == {}


def test_no_help_of_a_command_has_a_coined_word() -> None:
    texts = {
        name: " ".join([command.help, *(one.help or "" for one in command.params)])
        for name, command in commands().items()
    }
    assert {name: words for name, text in texts.items() if (words := coined(text))} == {}
