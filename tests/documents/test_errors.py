"""Each error class says what it means, why it comes, how it reads and what to do."""

from __future__ import annotations

import re
from functools import cache

import pytest

from docs.tables.errors import PARTS, error_classes
from docs.tables.markdown import paragraphs
from tests.documents.pages import ROOT

FOREIGN = {"SessionError", "TurnFailed"}
"""Their examples are words of another version, and of a provider."""
# What stands between two pieces of a message that are in the code: values.
_VALUES = re.compile(r"'[^']*'|\([^)]*\)|[\w.,]*\d[\w.,]*|[\w.]+\.\w+|: |\.\.\.")
_NEXT_LITERAL = re.compile(r"[\"']\s*\n\s*f?[\"']")


@cache
def code() -> str:
    """The package without the examples, and with texts of several lines in one piece."""
    files = sorted((ROOT / "llmsession").rglob("*.py"))
    text = "".join(_NEXT_LITERAL.sub("", file.read_text(encoding="utf-8")) for file in files)
    return re.sub(r"Example: ``.*?``", "", text, flags=re.DOTALL).replace("\\", "")


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_has_a_cause_an_example_and_a_remedy(kind: type[Exception]) -> None:
    named = [part.partition(": ")[0] for part in paragraphs(kind)[1:]]
    assert named == list(PARTS)


def test_the_example_of_an_error_is_a_message_of_the_code() -> None:
    invented = []
    for kind in error_classes():
        example = next(part for part in paragraphs(kind) if part.startswith("Example: "))
        message = example.removeprefix("Example: ").strip("`")
        words = max(_VALUES.split(message), key=len).split()
        # The first and the last may be values, too.
        inner = " ".join(words[1:-1] if len(words) > 2 else words)
        if kind.__name__ not in FOREIGN and inner not in code():
            invented.append(f"{kind.__name__}: {inner}")
    assert invented == []
