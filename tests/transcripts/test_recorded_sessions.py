"""Eight real Claude Code sessions: nothing in them gets lost without a note."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from llmsession.transcripts import Conversation, detect, read, read_own, write_own
from llmsession.turns.blocks import ToolUseBlock

FOLDER = "claude-code-entireio-cli"
NAMES = [
    "2372de7ea2ff-0", "30e81e82f6ba-0", "5504c1f4266f-0", "62f30e5c547e-1",
    "91b42542f24f-0", "cd95adddad32-0", "ec38b74f08e3-3", "fc99c919b212-0",
]  # fmt: skip
MARKERS = ("[Request interrupted by user]", "[Request interrupted by user for tool use]")


class Recorded(NamedTuple):
    rows: list[tuple[int, dict[str, Any]]]
    stats: dict[str, Any]
    conversation: Conversation

    def blocks(self) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """Line, record and block of all that a model wrote or was sent."""
        found = []
        for line, record in self.rows:
            if record["type"] not in ("user", "assistant") or record["isSidechain"]:
                continue
            content = record["message"]["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            found += [(line, record, block) for block in content]
        return found

    def noted(self, *what: str) -> set[int]:
        return {note.line for note in self.conversation.notes if note.what in what}


@pytest.fixture(scope="module", params=NAMES)
def recorded(request: pytest.FixtureRequest, shared_data: Path) -> Recorded:
    name = f"{request.param}.jsonl"
    data = (shared_data / FOLDER / name).read_bytes()
    stats = json.loads((shared_data / FOLDER / "STATS.json").read_text("utf-8"))
    (conversation,) = read(data, strict=True)
    rows = [(at, json.loads(row)) for at, row in enumerate(data.split(b"\n"), 1) if row.strip()]
    return Recorded(rows, next(one for one in stats if one["id"] == name), conversation)


def test_every_tool_call_of_the_file_is_in_the_messages(recorded: Recorded) -> None:
    written = [block["id"] for _, _, block in recorded.blocks() if block["type"] == "tool_use"]
    ours = [call.id for message in recorded.conversation.messages for call in message.tool_calls]
    assert ours == written
    assert len(ours) == recorded.stats["tool_calls"]


def test_every_result_is_in_the_messages_or_noted_as_an_orphan(recorded: Recorded) -> None:
    lines = {
        block["tool_use_id"]: line
        for line, _, block in recorded.blocks()
        if block["type"] == "tool_result"
    }
    ours = [
        result.tool_use_id
        for message in recorded.conversation.messages
        for result in message.tool_results
    ]
    orphans = set(lines) - set(ours)
    assert len(ours) == len(set(ours)) == len(lines) - recorded.stats["orphan_results"]
    assert {lines[call] for call in orphans} == recorded.noted("orphan_result")


def test_every_text_thought_and_image_is_in_the_messages_or_noted(recorded: Recorded) -> None:
    ours: Counter[str] = Counter()
    for message in recorded.conversation.messages:
        for block in json.loads(bytes(message.body)):
            ours[json.dumps(block, sort_keys=True)] += 1
    left_out = set()
    for line, _, block in recorded.blocks():
        text = json.dumps(block, sort_keys=True)
        if ours[text]:
            ours[text] -= 1
        else:
            left_out.add(line)
    assert left_out == recorded.noted(
        "compact_summary", "synthetic", "interrupt_marker", "orphan_result"
    )
    # What is in the messages and on no message line: prompts that were queued, then steered.
    assert ours.total() == len(recorded.noted("steer"))


def test_every_line_is_in_the_messages_or_noted(recorded: Recorded) -> None:
    said = {line for line, _, _ in recorded.blocks()}
    noted = {note.line for note in recorded.conversation.notes}
    assert {line for line, _ in recorded.rows} == said | noted


def test_what_was_left_out_of_what_the_model_saw_is_noted_as_visible(recorded: Recorded) -> None:
    visible = [note for note in recorded.conversation.notes if note.visible]
    expected = {"compact_summary", "interrupt_marker", "orphan_result", "missing_parent"}
    assert {note.what for note in visible} <= expected
    counted = Counter(note.what for note in visible)
    assert counted["compact_summary"] == recorded.stats["compact_summaries"]
    assert counted["interrupt_marker"] == recorded.stats["interrupts"]
    assert counted["orphan_result"] == recorded.stats["orphan_results"]


def test_calls_are_answered_by_the_very_next_message_apart_from_known_orphans(
    recorded: Recorded,
) -> None:
    messages = recorded.conversation.messages
    unanswered = []
    for at, message in enumerate(messages):
        after = messages[at + 1] if at + 1 < len(messages) else None
        results = [r.tool_use_id for r in after.tool_results] if after and after.is_user else []
        calls = [call.id for call in message.tool_calls]
        assert [call for call in calls if call in results] == (results if calls else [])
        unanswered += [call for call in calls if call not in results]
    assert tuple(unanswered) == recorded.conversation.unanswered
    assert len(unanswered) == recorded.stats["orphan_calls"]


def test_usage_is_counted_once_for_each_request(recorded: Recorded) -> None:
    replies = [message for message in recorded.conversation.messages if message.is_assistant]
    usages = [message.usage for message in replies if message.usage is not None]
    assert len(usages) == len(replies) == recorded.stats["usage_requests"]
    assert max(usage.prompt_tokens for usage in usages) == recorded.stats["max_prompt_tokens"]
    assert sum(usage.output_tokens for usage in usages) == recorded.stats["sum_output_tokens"]


def test_a_turn_is_a_user_message_then_replies_and_results_by_turns(recorded: Recorded) -> None:
    broken = len(recorded.conversation.unanswered)
    for turn in recorded.conversation.turns:
        assert turn[0].is_user
        assert not turn[0].tool_results
        doubled = [one for one, two in pairwise(turn) if one.role == two.role]
        assert len(doubled) <= broken
        assert all(isinstance(message.content[-1], ToolUseBlock) for message in doubled)
        for message in turn[1:]:
            assert message.is_assistant or message.tool_results
    numbers = [turn[0].turn for turn in recorded.conversation.turns]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_prompt_that_a_person_typed_opens_a_turn_or_is_part_of_its_opening(
    recorded: Recorded,
) -> None:
    typed = [
        block["text"]
        for _, record, block in recorded.blocks()
        if record["type"] == "user"
        and block["type"] == "text"
        and block["text"] not in MARKERS
        and not record.get("isMeta")
        and not record.get("isCompactSummary")
        and "toolUseResult" not in record
    ]
    openings = [turn[0] for turn in recorded.conversation.turns]
    said = [block for opening in openings for block in json.loads(bytes(opening.body))]
    texts = [block.get("text") for block in said]
    assert [text for text in texts if text in typed] == typed


def test_the_own_format_gives_the_conversation_back_byte_for_byte(recorded: Recorded) -> None:
    written = write_own(recorded.conversation)
    again = read_own(written, strict=True)
    assert again.messages == recorded.conversation.messages
    assert again.interrupted == recorded.conversation.interrupted
    assert again.notes == ()
    assert write_own(again) == written


# Turns, messages, interrupted turns. Turns and interrupts were checked against the files by eye.
TURNS = {
    "2372de7ea2ff-0": (5, 236, ()),
    "30e81e82f6ba-0": (5, 38, ()),
    "5504c1f4266f-0": (13, 167, (5,)),
    "62f30e5c547e-1": (2, 30, ()),
    "91b42542f24f-0": (4, 101, ()),
    "cd95adddad32-0": (42, 455, (18, 23, 24, 30, 33, 37)),
    "ec38b74f08e3-3": (9, 83, (1, 5, 6)),
    "fc99c919b212-0": (21, 267, ()),
}


def test_turns_messages_and_interrupts_are_those_of_the_file(recorded: Recorded) -> None:
    conversation = recorded.conversation
    counted = (len(conversation.turns), len(conversation.messages), conversation.interrupted)
    assert counted == TURNS[recorded.stats["id"].removesuffix(".jsonl")]


def test_no_recording_of_another_system_is_taken_for_one_of_these(shared_data: Path) -> None:
    others = [
        path
        for path in sorted(shared_data.rglob("*.*"))
        if FOLDER not in path.parts and path.suffix in (".json", ".jsonl", ".yaml")
    ]
    assert len(others) > 170
    assert not [path for path in others if detect(path.read_bytes()) in ("own", "claude-code")]
    about = [path for path in others if path.name in ("MANIFEST.json", "STATS.json")]
    assert {detect(path.read_bytes()) for path in about} == {None}
