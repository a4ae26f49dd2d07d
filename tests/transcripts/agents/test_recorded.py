"""All recorded conversations of the other systems: figures, pairs, round trips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmsession.transcripts import (
    Conversation,
    detect,
    read,
    read_exchanges,
    read_own,
    write,
    write_own,
)
from tests.transcripts.shapes import content_of

CODEX, PI = "codex-entireio-git-sync", "pi-mono"
GEMINI, TAU, CASSETTES = (
    "gemini-cli-entireio-cli", "tau-bench-gpt4o-airline", "cassettes-pydantic-ai",
)  # fmt: skip
FILES = {
    (CODEX, "8a21e9e6fa95-1.jsonl"): "codex",
    (CODEX, "8c8385150305-1.jsonl"): "codex",
    (CODEX, "9c633db8452e-1.jsonl"): "codex",
    (PI, "before-compaction.jsonl"): "pi",
    (PI, "large-session.jsonl"): "pi",
    (GEMINI, "ab2b9748b105-0.json"): "gemini-cli",
    (TAU, "gpt-4o-airline.json"): "openai-chat",
}


class Recorded(NamedTuple):
    format: str
    raw: bytes
    conversations: tuple[Conversation, ...]
    stats: list[dict[str, Any]]


@pytest.fixture(scope="module", params=FILES, ids=lambda place: place[1])
def recorded(request: pytest.FixtureRequest, shared_data: Path) -> Recorded:
    folder, name = request.param
    raw = (shared_data / folder / name).read_bytes()
    stats = json.loads((shared_data / folder / "STATS.json").read_text("utf-8"))
    ours = [one for one in stats if one["file"] == name]
    return Recorded(FILES[request.param], raw, read(raw, strict=True), ours)


def test_the_file_is_taken_for_what_it_is(recorded: Recorded) -> None:
    assert detect(recorded.raw) == recorded.format
    assert len(recorded.conversations) == len(recorded.stats)


def test_calls_results_and_usage_are_those_of_the_file(recorded: Recorded) -> None:
    for conversation, stats in zip(recorded.conversations, recorded.stats, strict=True):
        messages = conversation.messages
        results = [r for message in messages for r in message.tool_results]
        assert len(results) == stats["tool_results"]
        assert len(conversation.unanswered) == stats["orphan_calls"]
        if recorded.format != "openai-chat":  # there the figures count an id once
            assert sum(len(message.tool_calls) for message in messages) == stats["tool_calls"]
        usages = [message.usage for message in messages if message.usage is not None]
        largest = max((usage.prompt_tokens for usage in usages), default=0)
        assert largest == stats["max_prompt_tokens"]
        # Replies without content have usage, too; they are no messages.
        noted = conversation.count_notes()
        without = noted.get("empty", 0) + noted.get("continued", 0)
        assert stats["usage_requests"] - without <= len(usages) <= stats["usage_requests"]


def test_every_result_answers_a_call_of_the_reply_before_it(recorded: Recorded) -> None:
    for conversation in recorded.conversations:
        waiting: set[str] = set()
        for message in conversation.messages:
            if message.is_assistant:
                waiting = {call.id for call in message.tool_calls}
            for result in message.tool_results:
                assert result.tool_use_id in waiting
                waiting.discard(result.tool_use_id)


def test_call_ids_and_message_ids_are_unique(recorded: Recorded) -> None:
    for conversation in recorded.conversations:
        calls = [call.id for message in conversation.messages for call in message.tool_calls]
        ids = [message.id for message in conversation.messages]
        assert len(set(calls)) == len(calls)
        assert len(set(ids)) == len(ids)


def test_every_text_of_the_file_is_in_the_messages_in_its_order(recorded: Recorded) -> None:
    for texts, conversation in zip(_texts(recorded), recorded.conversations, strict=True):
        ours = [
            text
            for message in conversation.messages
            for text in [message.text, *(result.text for result in message.tool_results)]
            if text
        ]
        assert ours == texts


def _texts(recorded: Recorded) -> list[list[str]]:
    """The texts that a model wrote or was sent, by a short reading of their own."""
    if recorded.format == "openai-chat":
        return [
            [m["content"] for m in task["traj"] if m["role"] != "system" and m["content"]]
            for task in json.loads(recorded.raw)
        ]
    if recorded.format == "gemini-cli":
        found = []
        for message in json.loads(recorded.raw)["messages"]:
            if message["type"] != "info" and message["content"]:
                found.append(message["content"])
            for call in message.get("toolCalls", ()):
                found.append(call["result"][0]["functionResponse"]["response"]["output"])
        return [found]
    rows = [json.loads(row) for row in recorded.raw.splitlines()]
    read_row = _codex_texts if recorded.format == "codex" else _pi_texts
    return [[text for row in rows for text in read_row(row) if text]]


def _codex_texts(row: dict[str, Any]) -> list[str]:
    item = row["payload"]
    if row["type"] != "response_item":
        return []
    if item["type"].endswith("_output"):
        return [item["output"]]
    if item["type"] != "message" or item["role"] == "developer":
        return []
    return ["".join(part.get("text", "") for part in item["content"])]


def _pi_texts(row: dict[str, Any]) -> list[str]:
    message = row.get("message", {})
    if message.get("role") == "bashExecution":
        return [f"Ran `{message['command']}`\n```\n{message['output']}\n```"]
    content = message.get("content", [])
    joined = "\n" if message.get("role") == "toolResult" else ""
    return [joined.join(part["text"] for part in content if part["type"] == "text")]


def test_what_is_exported_and_imported_again_is_the_same(recorded: Recorded) -> None:
    files = write(recorded.conversations, recorded.format)
    again = read(files, recorded.format, strict=True)
    assert [content_of(each) for each in again] == [
        content_of(each) for each in recorded.conversations
    ]
    assert [each.messages for each in again] == [each.messages for each in recorded.conversations]
    assert [each.interrupted for each in again] == [
        each.interrupted for each in recorded.conversations
    ]


@pytest.mark.parametrize("format", ["claude-code", "pi", "codex", "openai-chat"])
def test_what_is_exported_as_another_format_keeps_ids_order_text_and_pairs(
    recorded: Recorded, format: str
) -> None:
    few = recorded.conversations[:5]
    again = [one for raw in write(few, format).values() for one in read(raw, format, strict=True)]
    assert [content_of(each) for each in again] == [content_of(each) for each in few]


def test_our_own_format_gives_it_back_as_it_was(recorded: Recorded) -> None:
    for conversation in recorded.conversations:
        again = read_own(write_own(conversation), strict=True)
        assert again.messages == conversation.messages
        assert (again.extra, again.records) == (conversation.extra, conversation.records)
        assert (again.system, again.summary) == (conversation.system, conversation.summary)


def test_recorded_claude_code_sessions_are_exported_and_imported_as_they_were(
    shared_data: Path,
) -> None:
    for path in sorted((shared_data / "claude-code-entireio-cli").glob("*.jsonl")):
        (first,) = read(path.read_bytes())
        for format in ("claude-code", "pi", "codex", "anthropic-messages"):
            (raw,) = write([first], format).values()
            (again,) = read(raw, format, strict=True)
            assert content_of(again) == content_of(first)
            if format == "claude-code":
                assert again.messages == first.messages
                assert again.interrupted == first.interrupted


# Turns and interrupts were checked against the files by eye.
TURNS = {
    "8a21e9e6fa95-1.jsonl": (12, ()),
    "8c8385150305-1.jsonl": (8, ()),
    "9c633db8452e-1.jsonl": (4, (2,)),
    "ab2b9748b105-0.json": (1, ()),
}


@pytest.mark.parametrize("place", [place for place in FILES if place[1] in TURNS], ids=str)
def test_turns_and_interrupts_are_those_of_the_file(
    place: tuple[str, str], shared_data: Path
) -> None:
    (found,) = read(shared_data.joinpath(*place).read_bytes(), strict=True)
    assert (len(found.turns), found.interrupted) == TURNS[place[1]]


def test_an_aborted_or_failed_reply_of_pi_is_an_interrupt(shared_data: Path) -> None:
    for path in sorted((shared_data / PI).glob("*.jsonl")):
        rows = [json.loads(row) for row in path.read_bytes().splitlines()]
        stops = [row.get("message", {}).get("stopReason") for row in rows]
        (found,) = read(path.read_bytes(), strict=True)
        cut = sum(stop in ("aborted", "error") for stop in stops)
        # One more: a loop that a compaction cut short, without a word about it.
        assert len(found.interrupted) == cut + (path.name == "before-compaction.jsonl")


# Recorded requests.


@pytest.fixture(scope="module")
def cassettes(shared_data: Path) -> list[tuple[dict[str, Any], bytes]]:
    folder = shared_data / CASSETTES
    stats = json.loads((folder / "STATS.json").read_text("utf-8"))
    return [(one, (folder / one["file"]).read_bytes()) for one in stats]


def test_every_cassette_is_known_and_gives_its_requests_and_conversations(
    cassettes: list[tuple[dict[str, Any], bytes]],
) -> None:
    assert len(cassettes) == 165
    for _, raw in cassettes:
        assert detect(raw) == "cassette"
        for conversation in read(raw, strict=True):
            again = read_own(write_own(conversation), strict=True)
            assert (again.messages, again.extra) == (conversation.messages, conversation.extra)


def test_the_usage_of_every_request_is_the_providers(
    cassettes: list[tuple[dict[str, Any], bytes]],
) -> None:
    counted = 0
    for stats, raw in cassettes:
        usages = [one.usage for one in read_exchanges(raw, strict=True) if one.usage is not None]
        counted += len(usages)
        largest = max((usage.prompt_tokens for usage in usages), default=0)
        assert largest == stats["max_prompt_tokens"]
    assert counted == 112 + 3 + 59 + 33 + 7  # Anthropic, streamed, responses, chat, counts


def test_nothing_of_a_cassette_is_left_out_without_a_note(
    cassettes: list[tuple[dict[str, Any], bytes]],
) -> None:
    for _, raw in cassettes:
        noted = {note.line for one in read(raw)[:1] for note in one.notes}
        conversations = {int(one.id.removeprefix("exchange-")) for one in read(raw)}
        exchanges = {one.number for one in read_exchanges(raw)}
        assert exchanges <= conversations | noted
