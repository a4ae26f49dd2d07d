"""Small conversations for the lab, written by hand: nothing in them was recorded."""

from __future__ import annotations

import msgspec

from llmsession.lab.recording import Recording, record
from llmsession.lab.retained import Needs, find_needs
from llmsession.transcripts import Conversation
from tests.lab.recorded import Recorded, call, result

__all__ = ["long_talk", "needs_of", "with_times"]


def long_talk(steps: int = 40, *, lines: int = 40, model: str = "claude-opus-4-6") -> Recorded:
    """One turn of many steps: each reads a file of *lines* lines, and names a line of the file
    that was read ten steps before."""
    talk = Recorded(model).ask("please read all of it")
    for step in range(steps):
        told = f"step {step}"
        if step >= 10:
            told = f"as in {_line(step - 10, 7)}"
        talk.reply(
            [{"type": "text", "text": told}, call(f"c{step}", path=f"src/part_{step}.py")], None
        )
        talk.answer(result(f"c{step}", "\n".join(_line(step, line) for line in range(lines))))
    return talk.reply("that is all", None)


def _line(step: int, line: int) -> str:
    return f"value_{step}_{line} = compute_{line}(offset={step * 1000 + line})"


def needs_of(conversation: Conversation) -> tuple[Recording, Needs]:
    recording = record(conversation)
    return recording, find_needs(recording.messages, recording.asks, recording.system)


def with_times(talk: Recorded, *times: float) -> Conversation:
    """*talk* with a time for each message."""
    talk.messages = [
        msgspec.structs.replace(message, created_at=at, completed_at=at)
        for message, at in zip(talk.messages, times, strict=True)
    ]
    return talk.done()
