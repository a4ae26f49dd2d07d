"""What holds for every format alike, on a small file of each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmsession.compaction.rules.repair import tool_pair_repair
from llmsession.errors import TranscriptError
from llmsession.transcripts import (
    FORMATS,
    Conversation,
    Files,
    detect,
    read,
    read_own,
    write,
    write_own,
)
from llmsession.transcripts.common.format import Probe
from llmsession.turns.blocks import TextBlock
from llmsession.turns.messages import Message
from tests.transcripts.agents.sources import SOURCES, continue_session
from tests.transcripts.chats.samples import SAMPLES, documents
from tests.transcripts.shapes import content_of

EXAMPLES = int(os.environ.get("TRANSCRIPT_EXAMPLES", "8"))
CHATS = {name: documents(sample) for name, sample in SAMPLES.items()}
FILES: dict[str, dict[str, bytes]] = {**SOURCES, **CHATS}
WRITTEN = [name for name in FILES if FORMATS[name].write is not None]
LISTS = ("anthropic-messages", "openai-chat")
WITHOUT_JSON = ("codebuddy", "cassette")

every_format = pytest.mark.parametrize("name", FILES)
every_agent = pytest.mark.parametrize("name", SOURCES)
every_chat = pytest.mark.parametrize("name", CHATS)
every_written = pytest.mark.parametrize("name", WRITTEN)


def whole(conversations: Sequence[Conversation]) -> list[tuple[Any, ...]]:
    return [
        (
            one.id, one.title, one.parent, one.shared_turns, one.summary, one.system,
            one.interrupted, list(map(fields_of, one.messages)),
        )
        for one in conversations
    ]  # fmt: skip


def fields_of(message: Message) -> tuple[Any, ...]:
    return (
        message.id, message.session, message.turn, message.role, bytes(message.body),
        message.synthetic, message.created_at, message.completed_at, message.model,
        message.provider, message.usage, message.stop_reason, message.error,
        json.loads(bytes(message.extra)) if message.extra else None,
    )  # fmt: skip


def test_each_format_has_a_file_here() -> None:
    assert set(FORMATS) == {*FILES, "own", "claude-code"}


def test_what_no_application_imports_is_refused_with_the_formats_that_can_be_written() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "reference" / "conversation-formats.md").read_text("utf-8")
    table = dict(re.findall(r"^\| `([\w-]+)` \| yes \| (yes|no) \|", page, re.MULTILINE))
    assert list(table) == list(FORMATS)
    written = [name for name, format in FORMATS.items() if format.write is not None]
    assert written == [name for name, answer in table.items() if answer == "yes"]
    conversations = read(FILES["codex"])
    for name in set(FORMATS) - set(written):
        with pytest.raises(TranscriptError) as caught:
            write(conversations, name)
        assert str(caught.value) == (
            f"{name!r} can only be read; formats that can be written: {', '.join(written)}"
        )


@every_format
def test_a_file_is_taken_for_what_it_is_and_nothing_else(name: str) -> None:
    assert detect(FILES[name]) == name
    first = read(FILES[name], strict=True)
    assert first[0].format == name
    assert whole(first) == whole(read(FILES[name]))
    if name in CHATS:
        probe = Probe(FILES[name])
        telling = [other for other in FORMATS if other not in LISTS]
        assert [other for other in telling if FORMATS[other].looks_like(probe)] == [name]


@every_agent
def test_turns_calls_and_results_are_those_of_the_script(name: str) -> None:
    conversation = read(SOURCES[name], name, strict=True)[0]
    openings = [turn[0].text for turn in conversation.turns]
    assert openings[:2] == ["print()" * (name == "continue") + "read both", "thanks"]
    replies = [message.text for message in conversation.messages if message.is_assistant]
    if name != "codebuddy":
        assert replies[0] == "I will."
        calls = [call.id for message in conversation.messages for call in message.tool_calls]
        assert calls == ["c1", "c2"]
        assert conversation.unanswered == (("c2",) if name == "continue" else ())
    assert "Welcome." in replies


@every_chat
def test_a_chats_turn_is_a_user_message_then_replies_with_all_their_results(name: str) -> None:
    for conversation in read(CHATS[name]):
        numbers = [turn[0].turn for turn in conversation.turns]
        assert numbers == list(range(1, len(numbers) + 1))
        for opening, *rest in conversation.turns:
            assert opening.is_user
            assert not opening.tool_results
            assert all(message.is_assistant or message.tool_results for message in rest)
        tool_pair_repair(conversation.messages, "strict")
        assert conversation.unanswered == ()


@every_format
def test_ids_are_unique_and_a_branch_shares_its_beginning_as_the_same_objects(name: str) -> None:
    conversations = read(FILES[name], name)
    by_id = {conversation.id: conversation for conversation in conversations}
    assert len(by_id) == len(conversations)
    for conversation in conversations:
        ids = [message.id for message in conversation.messages]
        assert len(set(ids)) == len(ids)
        assert all(ids)
        if conversation.parent:
            shared = conversation.shared_turns
            parent = by_id[conversation.parent]
            ours = [message for turn in conversation.turns[:shared] for message in turn]
            theirs = [message for turn in parent.turns[:shared] for message in turn]
            assert all(one is other for one, other in zip(ours, theirs, strict=True))
            assert conversation.turns[shared] != parent.turns[shared]


def test_trees_have_branches_and_lists_have_none() -> None:
    branched = {name for name in CHATS if any(one.parent for one in read(CHATS[name]))}
    assert branched == {"librechat", "open-webui", "chatgpt", "lobechat", "jan"}


# Writing.


@every_format
def test_our_own_format_gives_every_conversation_back_as_it_was(name: str) -> None:
    first = read(FILES[name], name)
    stored = [read_own(write_own(conversation), strict=True) for conversation in first]
    assert whole(stored) == whole(first)
    for again, conversation in zip(stored, first, strict=True):
        assert (again.extra, again.records) == (conversation.extra, conversation.records)
    if name in CHATS and name in WRITTEN:
        assert write(stored, name) == write(first, name)


_UNKNOWN = re.compile(r'"xNew": ?([^,}\n]+)')


def unknown(files: Sequence[bytes]) -> set[str]:
    return {value.replace(" ", "") for raw in files for value in _UNKNOWN.findall(raw.decode())}


@every_chat
def test_fields_that_nobody_knows_are_kept_and_written_again(name: str) -> None:
    first = read(CHATS[name])
    expected = unknown(list(CHATS[name].values()))
    kept = unknown([write_own(conversation) for conversation in first])
    assert expected
    assert {value for value in expected if value not in kept} <= {"1"}
    if name in WRITTEN:
        assert unknown(list(write(first, name).values())) == expected


@every_written
def test_what_is_written_and_read_again_is_the_same(name: str) -> None:
    first = read(FILES[name], name, strict=True)
    written = write(first, name)
    again = read(written, name, strict=True)
    assert detect(written) == name
    if name in CHATS:
        assert whole(again) == whole(first)
        assert write(again, name) == written
    else:
        assert [one.messages for one in again] == [one.messages for one in first]
        assert [one.interrupted for one in again] == [one.interrupted for one in first]


@pytest.mark.parametrize("target", [*(name for name in WRITTEN if name in SOURCES), "claude-code"])
@every_agent
def test_every_agents_format_is_written_as_every_other_with_ids_order_and_text(
    name: str, target: str
) -> None:
    first = read(SOURCES[name], name)
    again = read(write(first, target), target, strict=True)
    assert [one.id for one in again] == [one.id for one in first]
    assert list(map(content_of, again)) == list(map(content_of, first))


def texts(conversation: Conversation) -> tuple[str, ...]:
    blocks = (block for message in conversation.messages for block in message.content)
    return tuple(block.text for block in blocks if isinstance(block, TextBlock))


def calls(conversation: Conversation) -> list[tuple[str, Any]]:
    return [
        (call.name.replace("____", "."), call.input)
        for message in conversation.messages
        for call in message.tool_calls
    ]


@pytest.mark.parametrize("target", [name for name in WRITTEN if name in CHATS])
@every_chat
def test_a_conversation_of_one_system_is_written_for_another_with_its_texts_and_calls(
    name: str, target: str
) -> None:
    first = read(CHATS[name])
    again = read(write(first, target), target, strict=True)
    by_texts = {texts(conversation): conversation for conversation in again}
    for conversation in first:
        copy = by_texts[texts(conversation)]
        assert calls(copy) == ([] if target == "chatbot-ui" else calls(conversation))
        assert copy.unanswered == ()
        tool_pair_repair(copy.messages, "strict")
    assert whole(read(write(again, target), target, strict=True)) == whole(again)


# Broken files.


# A thread of Jan's without messages is a conversation without messages.
@pytest.mark.parametrize("name", [name for name in FILES if name != "jan"])
def test_an_empty_file_is_one_clear_error(name: str) -> None:
    for strict in (False, True):
        with pytest.raises(TranscriptError) as caught:
            read(dict.fromkeys(FILES[name], b""), name, strict=strict)
        assert "\n" not in str(caught.value)


TASK = "tasks/t1/api_conversation_history.json"
WRONG_FILES: list[tuple[str, bytes | Files, str]] = [
    # A corrupt history is an error and never an empty task.
    *((name, FILES[name] | {TASK: raw}, says) for name in ("roo-code", "cline-classic")
      for raw, says in ((b"{oops", "line 1"), (b"{}", "not a list"), (b'"x"', "not a list"))),
    ("roo-code", {"a": b"", "b": b""}, "no api_conversation_history"),
    ("cline-classic", {"a": b"", "b": b""}, "no api_conversation_history"),
    ("cline-sdk", b"{}", "no messages in it"),
    ("cline-sdk", {"a": b"", "b": b""}, r"no \*.messages.json"),
    ("gemini-cli", b'{"sessionId": "s"}', "not a Gemini CLI session"),
    ("chainreview", b'{"id":"x","repoPath":"/r"}', "no apiHistory"),
    ("chatbot-ui", b"{}", "it has no history"),
    ("chatbot-ui", b'{"version":4,"history":null}', "no conversation"),
    ("chatgpt", b"[{}]", "no conversation with a mapping"),
    ("jan", {"a.txt": b"", "b.txt": b""}, r"neither thread\.json nor messages\.jsonl"),
    ("librechat", b'{"conversationId":"x"}', "no messages"),
    ("minisearch", b'{"data":{"data":[{"tableName":"x","rows":[]}]}}', "none of its tables"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "match"), WRONG_FILES)
def test_a_file_of_something_else_is_refused_with_what_is_missing(
    name: str, data: bytes | Files, match: str
) -> None:
    with pytest.raises(TranscriptError, match=match):
        read(data, name)


# Where the records of a format stand in its file, what is none of them, and how it is refused.
NO_RECORDS: list[tuple[str, list[str | int], list[Any], str]] = [
    ("continue", ["history"], [{"message": {"role": "ghost"}}], "^item 2: .*'ghost'"),
    ("cline-sdk", ["messages"], [7], "^message 2"),
    ("roo-code", [], [{"content": "?"}], "^message 2"),
    ("gemini-cli", ["messages"], [{"type": "ghost"}], "^message 2: unknown type"),
    ("anthropic-messages", [], [{"content": "x"}], "^message 2: it has no known role"),
    ("openai-chat", [], [{"content": "?"}], "^message 2: it has no known role"),
    ("chainreview", ["apiHistory"],
     ["x", {"role": "tool", "content": ""}, {"role": "user"}, {"role": "user", "content": [3]}],
     "^record 2: a message without a role and content"),
    ("chatbot-ui", ["history", 0, "messages"],
     [7, {"role": "user"}, {"role": "x", "content": "y"}],
     "^conversation 1, record 2: a message without"),
    ("chatbot-ui-rows", ["messages"], [{"role": "user", "content": "x"}],
     "^record 2: a row without a role"),
    ("lobechat", ["messages"], ["text", {"id": "x"}, {"role": "user"}, {"id": "x", "role": "?"}],
     "^record 2: a row without an id"),
    ("librechat", ["messages"], ["a text", None, {"text": "no id"}],
     "^record 2: a message without a messageId"),
    ("minisearch", ["chatHistory"], [{"role": "user", "content": "x"}],
     "^record 2: a row of chatHistory without a run"),
    ("neurolink", ["messages"], [{"role": "narrator", "content": "?"}],
     "^record 2: a message without a known role"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path", "bad", "match"),
    [(name, path, bad, match) for name, path, bads, match in NO_RECORDS for bad in bads],
)
def test_what_is_no_record_is_noted_or_refused_by_its_number(
    name: str, path: list[str | int], bad: Any, match: str
) -> None:
    file, raw = next(iter(FILES[name].items()))
    document = records = json.loads(raw)
    for key in path:
        records = records[key]
    records.insert(1, bad)
    files = FILES[name] | {file: json.dumps(document).encode()}
    conversations = read(files, name)
    lines = [
        note.line
        for conversation in conversations
        for note in conversation.notes
        if note.what in ("bad_record", "bad_message")
    ]
    assert lines == [2]
    assert list(map(texts, conversations)) == list(map(texts, read(FILES[name], name)))
    with pytest.raises(TranscriptError, match=match):
        read(files, name, strict=True)


def read_or_refused(
    files: Files, name: str, *, strict: bool, checked: set[int] | None = None
) -> tuple[Conversation, ...]:
    """Whatever comes in is refused in our words, or is conversations that can be kept. Those
    that are *checked* already are not kept again."""
    try:
        conversations = read(files, name, strict=strict)
    except TranscriptError:
        return ()
    for conversation in conversations:
        written = write_own(conversation)
        if checked is None or hash(written) not in checked:
            assert read_own(written, strict=True).messages == conversation.messages
        if checked is not None:
            checked.add(hash(written))
    return conversations


@pytest.mark.parametrize("places", [70, pytest.param(3_000, marks=pytest.mark.long)])
@every_format
def test_a_file_that_was_cut_off_anywhere_is_read_or_refused(name: str, places: int) -> None:
    checked: set[int] = set()
    read_anyway = 0
    for path, raw in FILES[name].items():
        step = len(raw) // places + 1  # a short file byte by byte
        ends = {*range(0, len(raw), step), *range(max(0, len(raw) - 4), len(raw))}
        for number, end in enumerate(sorted(ends)):
            cut = FILES[name] | {path: raw[:end]}
            read_anyway += len(read_or_refused(cut, name, strict=False, checked=checked))
            if number % 2:
                read_or_refused(cut, name, strict=True, checked=checked)
    assert name not in CHATS or read_anyway > 0  # what is whole before the cut is read


@pytest.mark.parametrize("places", [60, pytest.param(600, marks=pytest.mark.long)])
@every_agent
def test_a_file_with_any_byte_changed_is_read_or_refused(name: str, places: int) -> None:
    checked: set[int] = set()
    for path, raw in FILES[name].items():
        for at in range(0, len(raw), len(raw) // places + 1):
            for number, byte in enumerate((0, 0x22, 0x5B, 0xFF)):
                changed = raw[:at] + bytes([byte]) + raw[at + 1 :]
                strict = bool((at + number) % 2)
                files = FILES[name] | {path: changed}
                read_or_refused(files, name, strict=strict, checked=checked)


ODD_FILES = [
    b"[" * 100_000, b'{"messages":' * 3_000, b'[{"role":"user","content":"\\ud800"}]',
    b'[{"role":"user","content":1e999,"ts":1e999}]', b"SQLite format 3\x00",
    b"interactions: !!python/object/apply:os.getcwd []",
    b"interactions:\n- request: {uri: a}\n  response: {status: []}\n",
]  # fmt: skip


@every_format
def test_any_bytes_are_read_or_refused(name: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
    @given(raw=st.binary(max_size=60), strict=st.booleans())
    def survives(raw: bytes, strict: bool) -> None:
        for path in FILES[name]:
            read_or_refused(FILES[name] | {path: raw}, name, strict=strict)

    for raw in ODD_FILES:
        for strict in (False, True):
            survives = example(raw=raw, strict=strict)(survives)
    survives()


WORDS = ["id", "role", "type", "text", "content", "user", "assistant", "tool", "tool_use", "c1"]
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats(allow_nan=False)
    | st.text(max_size=4) | st.sampled_from([*WORDS, "thinking"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(WORDS[:5]) | st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: Any = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else inner:
        yield from places(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def with_something_else(name: str, drawn: Any) -> Files:
    """The file with up to three values, anywhere in it, that are something else."""
    path = drawn.draw(st.sampled_from(sorted(FILES[name])))
    raw = FILES[name][path]
    rows = raw.splitlines() if path.endswith("jsonl") else [raw]
    at = drawn.draw(st.integers(0, len(rows) - 1))
    document = json.loads(rows[at])
    for _ in range(drawn.draw(st.integers(1, 3))):
        place = drawn.draw(st.sampled_from(list(places(document))))
        document = replaced(document, place, drawn.draw(anything))
    rows[at] = json.dumps(document).encode()
    return FILES[name] | {path: b"\n".join(rows)}


def stays_valid(name: str, files: Files, strict: bool) -> None:
    conversations = read_or_refused(files, name, strict=strict)
    if name not in CHATS:
        return
    for conversation in conversations:
        tool_pair_repair(conversation.messages[: answered(conversation)], "strict")
    if messages_of(conversations) and name in WRITTEN:
        with_messages = messages_of(read(write(conversations, name), name))
        assert with_messages == messages_of(conversations)


def messages_of(conversations: Sequence[Conversation]) -> list[list[tuple[str, str, str]]]:
    return [[(m.id, m.role, m.text) for m in one.messages] for one in conversations if one.messages]


def answered(conversation: Conversation) -> int | None:
    """Where the messages end that have to be valid: before a last reply with open calls."""
    calling = [at for at, message in enumerate(conversation.messages) if message.tool_calls]
    return calling[-1] if calling and conversation.unanswered else None


every_json = pytest.mark.parametrize("name", [name for name in FILES if name not in WITHOUT_JSON])


@every_json
@settings(derandomize=True, max_examples=EXAMPLES, deadline=None)
@given(drawn=st.data(), strict=st.booleans())
def test_a_file_with_something_else_in_any_place_is_read_or_refused_and_stays_valid(
    name: str, drawn: Any, strict: bool
) -> None:
    stays_valid(name, with_something_else(name, drawn), strict)


@pytest.mark.long
@every_json
@settings(derandomize=False, max_examples=3_000, deadline=None)
@given(drawn=st.data(), strict=st.booleans())
def test_a_file_with_something_else_in_any_place_long(name: str, drawn: Any, strict: bool) -> None:
    stays_valid(name, with_something_else(name, drawn), strict)


@every_agent
def test_each_value_of_a_file_can_be_another_kind_of_value(name: str) -> None:
    if name in WITHOUT_JSON:
        return
    path, raw = next(iter(SOURCES[name].items()))
    is_lines = path.endswith(".jsonl")
    document = [json.loads(row) for row in raw.splitlines()] if is_lines else json.loads(raw)
    checked: set[int] = set()
    odd: Any
    for number, place in enumerate(places(document)):
        for at, odd in enumerate((None, True, 10**400, "user", [1], {"a": []})):
            changed = replaced(document, place, odd)
            rows = changed if is_lines and isinstance(changed, list) else [changed]
            files = SOURCES[name] | {path: b"\n".join(json.dumps(row).encode() for row in rows)}
            read_or_refused(files, name, strict=bool((number + at) % 2), checked=checked)


def test_a_surrogate_in_a_document_is_replaced_and_noted() -> None:
    raw = continue_session().replace(b'"thanks"', b'"a\\ud800"')
    (conversation,) = read(raw, "continue", strict=True)
    assert conversation.turns[-1][0].text == "a\ufffd"
    assert conversation.count_notes()["surrogates"] == 1
    with suppress(TranscriptError):
        read(b"\xff" + raw, "continue")
