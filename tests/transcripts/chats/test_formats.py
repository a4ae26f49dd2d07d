"""What holds for every chat application's format alike."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
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
from llmsession.transcripts.agents.formats import MESSAGE_LISTS
from llmsession.transcripts.chats.formats import WEBCHATS
from llmsession.transcripts.common.format import Probe, as_files
from llmsession.turns.blocks import TextBlock
from llmsession.turns.messages import Message
from tests.transcripts.chats.samples import SAMPLES, Sample, as_sample, documents

_UNKNOWN = re.compile(r'"xNew": ?([^,}\n]+)')

every_format = pytest.mark.parametrize("name", SAMPLES)


def read_back(written: Files, name: str, *, strict: bool = True) -> tuple[Conversation, ...]:
    return read(written, name, strict=strict)


def told(message: Message) -> tuple[Any, ...]:
    return (
        message.id, message.session, message.turn, message.role, bytes(message.body),
        message.synthetic, message.created_at, message.completed_at, message.model,
        message.provider, message.usage, message.stop_reason, message.error,
        json.loads(bytes(message.extra)) if message.extra else None,
    )  # fmt: skip


def whole(conversations: Sequence[Conversation]) -> list[tuple[Any, ...]]:
    return [
        (
            each.id, each.title, each.parent, each.shared_turns, each.summary, each.system,
            each.interrupted, [told(message) for message in each.messages],
        )
        for each in conversations
    ]  # fmt: skip


def test_every_format_of_the_folder_has_a_sample_and_a_writer() -> None:
    assert set(SAMPLES) == set(WEBCHATS)
    assert all(format.write is not None for format in WEBCHATS.values())


@every_format
def test_a_file_is_detected_as_its_own_format_and_none_other(name: str) -> None:
    assert detect(SAMPLES[name]) == name
    peek = Probe(as_files(SAMPLES[name]))
    # Plain lists of messages come last: some of these files hold one.
    telling = [other for other in FORMATS if other not in MESSAGE_LISTS]
    assert [other for other in telling if FORMATS[other].looks_like(peek)] == [name]


@every_format
def test_a_written_file_is_detected_as_its_own_format(name: str) -> None:
    assert detect(write(read(SAMPLES[name]), name)) == name


@every_format
def test_reading_twice_gives_the_same(name: str) -> None:
    assert whole(read(SAMPLES[name])) == whole(read(SAMPLES[name]))


@every_format
def test_what_is_written_and_read_again_is_the_same_in_every_message(name: str) -> None:
    first = read(SAMPLES[name], strict=True)
    written = write(first, name)
    again = read_back(written, name)
    assert whole(again) == whole(first)
    assert write(again, name) == written


@every_format
def test_fields_that_nobody_knows_come_back(name: str) -> None:
    def unknown(files: Files) -> set[str]:
        found = (_UNKNOWN.findall(raw.decode()) for raw in files.values())
        return {value.replace(" ", "") for values in found for value in values}

    sample = documents(SAMPLES[name])
    assert unknown(write(read(sample), name)) == unknown(sample) != set()


@every_format
def test_the_way_through_our_own_format_loses_nothing(name: str) -> None:
    first = read(SAMPLES[name])
    stored = [read_own(write_own(each), strict=True) for each in first]
    assert whole(stored) == whole(first)
    assert write(stored, name) == write(first, name)


@every_format
def test_each_call_has_its_result_right_behind_it(name: str) -> None:
    for conversation in read(SAMPLES[name]):
        tool_pair_repair(conversation.messages, "strict")
        assert conversation.unanswered == ()


@every_format
def test_each_turn_is_a_user_message_then_replies_and_their_results(name: str) -> None:
    for conversation in read(SAMPLES[name]):
        numbers = [turn[0].turn for turn in conversation.turns]
        assert numbers == list(range(1, len(numbers) + 1))
        for opening, *rest in conversation.turns:
            assert opening.is_user
            assert not opening.tool_results
            assert all(message.is_assistant or message.tool_results for message in rest)


@every_format
def test_a_branch_shares_its_beginning_as_the_same_objects(name: str) -> None:
    found = {each.id: each for each in read(SAMPLES[name])}
    assert len(found) == len(read(SAMPLES[name]))
    for branch in (each for each in found.values() if each.parent):
        parent = found[branch.parent]
        ours = [message for turn in branch.turns[: branch.shared_turns] for message in turn]
        theirs = [message for turn in parent.turns[: branch.shared_turns] for message in turn]
        assert len(ours) == len(theirs)
        assert all(one is other for one, other in zip(ours, theirs, strict=True))
        assert branch.turns[branch.shared_turns] != parent.turns[branch.shared_turns]


TREES = {"librechat", "open-webui", "chatgpt", "lobechat", "jan"}


def test_trees_have_branches_and_lists_have_none() -> None:
    branched = {name for name in SAMPLES if any(each.parent for each in read(SAMPLES[name]))}
    assert branched == TREES


def texts(conversation: Conversation) -> list[str]:
    return [
        block.text
        for message in conversation.messages
        for block in message.content
        if isinstance(block, TextBlock)
    ]


def pairs(conversation: Conversation) -> list[tuple[str, Any]]:
    return [
        (call.name.replace("____", "."), call.input)
        for message in conversation.messages
        for call in message.tool_calls
    ]


WITHOUT_CALLS = {"chatbot-ui", "chatbot-ui-rows", "minisearch"}


@pytest.mark.parametrize("target", SAMPLES)
@every_format
def test_a_conversation_of_one_system_is_written_for_another_with_its_texts_and_calls(
    name: str, target: str
) -> None:
    first = read(SAMPLES[name])
    again = read_back(write(first, target), target)
    by_texts = {tuple(texts(each)): each for each in again}
    for conversation in first:
        found = by_texts[tuple(texts(conversation))]
        expected = [] if target in WITHOUT_CALLS else pairs(conversation)
        assert pairs(found) == expected
        assert found.unanswered == ()
        tool_pair_repair(found.messages, "strict")
    assert whole(read_back(write(again, target), target)) == whole(again)


# Broken files.


@every_format
@pytest.mark.parametrize("strict", [True, False])
def test_a_file_cut_off_anywhere_gives_conversations_or_a_transcript_error(
    name: str, strict: bool
) -> None:
    read_anyway = 0
    for file, raw in documents(SAMPLES[name]).items():
        for end in range(len(raw)):
            with suppress(TranscriptError):
                cut = as_sample(SAMPLES[name], file, raw[:end])
                read_anyway += len(read(cut, name, strict=strict))
    assert strict or read_anyway > 0  # what is whole before the cut is read


@every_format
@settings(derandomize=True, max_examples=60, deadline=None)
@given(raw=st.binary(max_size=40), strict=st.booleans())
def test_arbitrary_bytes_never_raise_anything_else(name: str, raw: bytes, strict: bool) -> None:
    for file in documents(SAMPLES[name]):
        with suppress(TranscriptError):
            read(as_sample(SAMPLES[name], file, raw), name, strict=strict)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats(width=32) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["id", "role", "type", "text", "content"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = list(enumerate(value)) if isinstance(value, list) else []
    inner = list(value.items()) if isinstance(value, dict) else inner
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def with_something_else(name: str, drawn: Any) -> Sample:
    """The sample with up to three values, anywhere in it, that are something else."""
    files = documents(SAMPLES[name])
    file = drawn.draw(st.sampled_from(sorted(files)))
    rows = files[file].splitlines() if file.endswith("jsonl") else [files[file]]
    at = drawn.draw(st.integers(0, len(rows) - 1))
    document = json.loads(rows[at])
    for _ in range(drawn.draw(st.integers(1, 3))):
        path = drawn.draw(st.sampled_from(places(document)))
        document = changed(document, path, drawn.draw(anything))
    rows[at] = json.dumps(document).encode()
    return as_sample(SAMPLES[name], file, b"\n".join(rows))


def is_read_or_refused(name: str, sample: Sample, strict: bool) -> None:
    try:
        found = read(sample, name, strict=strict)
    except TranscriptError:
        return
    if messages_of(found):
        again = read_back(write(found, name), name, strict=False)
        assert messages_of(again) == messages_of(found)
    for conversation in found:
        tool_pair_repair(conversation.messages[: answered(conversation)], "strict")
        assert read_own(write_own(conversation), strict=True).messages == conversation.messages


@every_format
@settings(derandomize=True, max_examples=80, deadline=None)
@given(drawn=st.data(), strict=st.booleans())
def test_a_file_with_something_else_in_any_place_is_read_or_refused_and_stays_valid(
    name: str, drawn: Any, strict: bool
) -> None:
    is_read_or_refused(name, with_something_else(name, drawn), strict)


@pytest.mark.long
@every_format
@settings(derandomize=False, max_examples=3_000, deadline=None)
@given(drawn=st.data(), strict=st.booleans())
def test_a_file_with_something_else_in_any_place_long(name: str, drawn: Any, strict: bool) -> None:
    is_read_or_refused(name, with_something_else(name, drawn), strict)


def messages_of(conversations: Sequence[Conversation]) -> list[list[tuple[str, str, str]]]:
    return [list(map(spoken, each.messages)) for each in conversations if each.messages]


def spoken(message: Message) -> tuple[str, str, str]:
    return message.id, message.role, message.text


def answered(conversation: Conversation) -> int | None:
    """Where the messages end that have to be valid: before a last reply with open calls."""
    opened = [at for at, each in enumerate(conversation.messages) if each.tool_calls]
    return opened[-1] if opened and conversation.unanswered else None
