"""The replies that the service plays, some recorded and some written for it, as files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmsession.compaction.recall import MAX_RECALL_CHARS, RECALL_TOOL_NAME
from llmsession.errors import InvalidInput
from llmsession.transcripts import Conversation, write_own
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message

__all__ = ["LONG", "RECORDED", "SCRIPTED", "first_turn", "largest_recallable", "results_of",
           "write_recordings"]  # fmt: skip

SCRIPTED, RECORDED, LONG = "scripted", "recorded", "long"
"""The models of the service. Each plays its own file to every session."""
_PACE = {SCRIPTED: (6, 0.03), RECORDED: (48, 0.0), LONG: (8, 0.02)}
"""For each model: characters per chunk, and seconds before each chunk."""


def first_turn(conversation: Conversation) -> tuple[Message, ...]:
    """The turn that part 4 uses."""
    return conversation.turns[0]


def results_of(turn: Sequence[Message]) -> dict[str, str]:
    """The tool results in *turn* by call id."""
    return {result.tool_use_id: result.text for message in turn for result in message.tool_results}


def largest_recallable(turn: Sequence[Message]) -> str:
    """The id of the call with the largest result that one recall returns in full. Raises
    InvalidInput if part 4 cannot use the turn."""
    results = results_of(turn)
    called = [call.id for reply in turn if reply.is_assistant for call in reply.tool_calls]
    is_over = turn[-1].is_assistant and not turn[-1].tool_calls
    whole = [call for call in results if len(results[call]) < MAX_RECALL_CHARS * 9 // 10]
    if not whole or not turn[0].text or not is_over or sorted(called) != sorted(results):
        raise InvalidInput(
            "no file has a first turn that ends and has tool calls that are all answered;"
            " the story needs one"
        )
    return max(whole, key=lambda call: len(results[call]))


def _said(turn: int, content: Any) -> Message:
    body = encode_blocks(content)
    return Message(id="", session="story", turn=turn, role="assistant", body=body)


def _called(turn: int, call: str, tool: str, **arguments: Any) -> Message:
    block = {"type": "tool_use", "id": call, "name": tool, "input": arguments}
    return _said(turn, [block])


_SCRIPT = (
    _said(1, "Hello. I am a recording: nobody thinks here, but the session around me is real."),
    _called(2, "call_1", "deploy", target="staging"),
    _called(3, "call_1", "deploy", target="staging"),
    _said(3, "The earlier deployment may have gone through; I deployed once more, and it is up."),
)
_LONG = _said(
    1, "".join(f"Line {number:2} of a long reply that nobody thinks of. " for number in range(30))
)


def write_recordings(folder: Path, conversation: Conversation) -> Path:
    """Write the files that the service plays into *folder*. Returns the path of its configuration.

    Of *conversation* the first turn is played, and then a recall of its largest result.
    """
    turn = first_turn(conversation)
    replies = [msgspec.structs.replace(reply, turn=1) for reply in turn if reply.is_assistant]
    replies += [
        _called(2, "call_recall", RECALL_TOOL_NAME, id=largest_recallable(turn)),
        _said(2, "Here it is, in full: compaction loses nothing."),
    ]
    lines: list[str] = []
    for model, played in ((SCRIPTED, _SCRIPT), (RECORDED, replies), (LONG, (_LONG,))):
        file = folder / f"{model}.jsonl"
        file.write_bytes(write_own(_conversation(model, played)))
        chars, delay_s = _PACE[model]
        lines += [
            f"[providers.{model}]",
            'kind = "replay"',
            f'models = ["{model}"]',
            f"file = {json.dumps(str(file))}",
            f"delta_chars = {chars}",
            f"delay_s = {delay_s}",
            'exhausted = "fail"',
        ]
    config = folder / "service.toml"
    config.write_text("\n".join(lines) + "\n", "utf-8")
    return config


def _conversation(name: str, messages: Iterable[Message]) -> Conversation:
    numbered = tuple(
        msgspec.structs.replace(message, id=f"{name}/{at}", session=name)
        for at, message in enumerate(messages)
    )
    return Conversation(id=name, format="own", messages=numbered)
