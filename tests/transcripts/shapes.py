"""Conversations as short texts, to be compared; and files as rows of a table: what is in one, and
what its conversations then say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import FORMATS, Conversation, Note, read, write
from llmsession.turns.blocks import ImageBlock, ThinkingBlock

_LETTERS = {
    "TextBlock": "t",
    "ToolUseBlock": "c",
    "ToolResultBlock": "r",
    "ThinkingBlock": "k",
    "ImageBlock": "i",
}


def ids(conversation: Conversation) -> list[str]:
    return [message.id for message in conversation.messages]


def said(conversation: Conversation) -> list[str]:
    """The texts of the messages that have one."""
    return [message.text for message in conversation.messages if message.text]


def shape(conversation: Conversation) -> list[str]:
    """Turn ids with what each message holds: text, call, result, k for thinking, image."""
    return [
        f"{message.turn_id}:"
        + "".join(_LETTERS.get(type(block).__name__, "o") for block in message.content)
        for message in conversation.messages
    ]


def noted(conversation: Conversation, what: str) -> Note:
    """The only note of this kind."""
    (note,) = [note for note in conversation.notes if note.what == what]
    return note


def content_of(conversation: Conversation) -> list[tuple[Any, ...]]:
    """What every round trip keeps: ids, order, text, calls and results."""
    return [
        (
            message.id,
            message.role,
            message.text,
            [(call.id, call.name, call.input) for call in message.tool_calls],
            [(result.tool_use_id, result.text) for result in message.tool_results],
        )
        for message in conversation.messages
    ]


class Case(NamedTuple):
    """A file, and what is expected of its conversations: see `check`."""

    raw: Any
    expected: dict[str, Any]


def case(raw: Any, **expected: Any) -> Case:
    return Case(raw, expected)


def every(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=list(cases))


def _answers(one: Conversation) -> dict[str, str]:
    """What each call was answered, by the path that it was made with."""
    results = {result.tool_use_id: result.text for result in _blocks(one, "tool_results")}
    return {call.input["path"]: results[call.id] for call in _blocks(one, "tool_calls")}


def _blocks(one: Conversation, name: str) -> list[Any]:
    return [block for message in one.messages for block in getattr(message, name)]


SEEN: dict[str, Callable[[Conversation], Any]] = {
    "shape": lambda one: " ".join(shape(one)),
    "said": said,
    "ids": ids,
    "notes": lambda one: [f"{note.line} {note.what}" + "!" * note.visible for note in one.notes],
    "openings": lambda one: [turn[0].text for turn in one.turns],
    "calls": lambda one: [(c.id, c.name, c.input) for c in _blocks(one, "tool_calls")],
    "results": lambda one: [
        (r.tool_use_id, r.text, bool(r.is_error)) for r in _blocks(one, "tool_results")
    ],
    "answers": _answers,
    "inputs": lambda one: [call.input for call in _blocks(one, "tool_calls")],
    "names": lambda one: [call.name for call in _blocks(one, "tool_calls")],
    "result_contents": lambda one: [result.content for result in _blocks(one, "tool_results")],
    "thoughts": lambda one: [
        (b.thinking, b.signature) for b in _blocks(one, "content") if isinstance(b, ThinkingBlock)
    ],
    "images": lambda one: [b.source for b in _blocks(one, "content") if isinstance(b, ImageBlock)],
    "synthetic": lambda one: [message.synthetic for message in one.messages if message.synthetic],
    "usages": lambda one: [message.usage for message in one.messages if message.usage is not None],
    "times": lambda one: [message.created_at for message in one.messages],
    "spans": lambda one: [(message.created_at, message.completed_at) for message in one.messages],
    "models": lambda one: [message.model for message in one.messages],
    "errors": lambda one: [message.error for message in one.messages if message.error],
}
"""What a row can expect beside a conversation's own fields; a ``!`` marks a note as visible."""


def check(case: Case, name: str) -> None:
    """The conversations of the file are as expected; and once more, but for their notes, when
    they were written, where the format *name* can be, and read again.

    ``branches`` are the conversations behind the first. ``noted`` are some of the notes, and
    ``noted_again`` all that the second reading has. A part is enough of the ``records``, of the
    ``extra``, and of what a message, by its index, keeps ``beside``. ``written`` is a part of the
    files that are written, and ``unwritten`` is in none. ``refused`` is what a strict reading
    says.
    """
    expected = dict(case.expected)
    written, unwritten = expected.pop("written", b""), expected.pop("unwritten", None)
    refused, noted_again = expected.pop("refused", None), expected.pop("noted_again", None)
    if refused is not None:
        with pytest.raises(TranscriptError, match=refused):
            read(case.raw, name, strict=True)
    found = read(case.raw, name, strict=refused is None)
    _compare(found, expected)
    if FORMATS[name].write is not None:
        files = write(found, name)
        whole = b"".join(files.values())
        assert written in whole
        assert unwritten is None or unwritten not in whole
        again = read(files, name, strict=True)
        _compare(again, _without_notes(expected))
        assert list(map(content_of, again)) == list(map(content_of, found))
        assert noted_again in (None, SEEN["notes"](again[0]))


_OF_A_READING = ("notes", "noted", "records")


def _without_notes(expected: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in expected.items() if name not in _OF_A_READING}
    return left | {"branches": [_without_notes(one) for one in expected.get("branches", ())]}


def _compare(found: Sequence[Conversation], expected: Mapping[str, Any]) -> None:
    branches = expected.get("branches", [])
    for one, fields in zip(found, [expected, *branches], strict=True):
        seen = {key: _seen(one, key, fields[key]) for key in fields if key != "branches"}
        assert seen == {key: value for key, value in fields.items() if key != "branches"}


def _seen(one: Conversation, name: str, value: Any) -> Any:
    if name == "beside":
        extras = {index: bytes(one.messages[index].extra or b"") for index in value}
        return {index: _part(value[index], extras[index]) for index in value}
    if name == "noted":
        notes = SEEN["notes"](one)
        return value if set(value) <= set(notes) else notes
    if name in ("records", "extra"):
        held = one.records if name == "records" else one.extra.values()
        return _part(value, b"".join(map(bytes, held)))
    return SEEN.get(name, attrgetter(name))(one)


def _part(part: bytes, whole: bytes) -> bytes:
    """*part* if it is one, else the *whole*, to be shown."""
    return part if part in whole else whole
