"""Chooses the reply to each request, and the fault of each answer.

Replies come from a list, a function, a mapping of conversations, or a file. Faults come from a
list, from a function, or at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import msgspec

from llmsession.errors import InvalidInput
from llmsession.turns.blocks import encode_json

from ..scripted import Scripted, ScriptedReply, say
from .model.faults import WireFault
from .replies.received import Received

__all__ = [
    "FaultSchedule",
    "Faults",
    "RandomFaults",
    "ReplyScript",
    "ServerScript",
    "echo",
    "read_script",
]

Chooser: TypeAlias = Callable[[Received], Scripted]
OneScript: TypeAlias = Iterable[Scripted] | Chooser
ServerScript: TypeAlias = OneScript | Mapping[str, OneScript] | None


def echo(received: Received) -> ScriptedReply:
    """The reply of a server without a script: the text of the last message."""
    texts = list(_texts(received.body["messages"][-1].get("content")))
    return say("".join(texts).strip() or "(nothing)")


def _texts(content: Any) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            text = block.get("text")
            yield from [text] if isinstance(text, str) else _texts(block.get("content"))


class ReplyScript:
    """What is left of a script. Replies are taken in the order that requests come; with a
    mapping, each conversation has its own order, and the script under "" is for all others."""

    def __init__(self, script: ServerScript) -> None:
        if script is None:
            script = echo
        whole = dict(script) if isinstance(script, Mapping) else {"": script}
        self._choosers = {name: one for name, one in whole.items() if callable(one)}
        self._lines = {name: iter(one) for name, one in whole.items() if not callable(one)}

    def choose(self, received: Received) -> ScriptedReply | None:
        """The reply to *received*; None where the script has none left."""
        name = self._script_of(received.conversation)
        if (chooser := self._choosers.get(name)) is not None:
            return _reply(chooser(received))
        chosen = next(self._lines.get(name, iter(())), None)
        return _reply(chosen) if chosen is not None else None

    def put_back(self, received: Received, reply: ScriptedReply) -> None:
        """*reply* did not reach its client: it is the next one of its conversation again. A
        function chooses anew."""
        name = self._script_of(received.conversation)
        if name in self._lines:
            self._lines[name] = chain([reply], self._lines[name])

    def _script_of(self, conversation: str) -> str:
        known = conversation in self._choosers or conversation in self._lines
        return conversation if known else ""


def _reply(scripted: Scripted) -> ScriptedReply:
    return say(scripted) if isinstance(scripted, str) else scripted


class _WrittenReply(msgspec.Struct, forbid_unknown_fields=True):
    """A reply as it stands in a script's file."""

    content: str | list[dict[str, Any]]
    stop_reason: str | None = None
    model: str | None = None
    delta_chars: int = 16
    delay_s: float = 0.0

    def reply(self) -> ScriptedReply:
        if isinstance(self.content, str):
            blocks = say(self.content).blocks
        else:
            blocks = tuple(encode_json(block) for block in self.content)
        return ScriptedReply(
            blocks=blocks,
            stop_reason=self.stop_reason,
            model=self.model,
            delta_chars=self.delta_chars,
            delay_s=self.delay_s,
        )


_Line: TypeAlias = list[str | _WrittenReply]


def read_script(path: Path) -> ServerScript:
    """A script's file: a JSON list of replies, or an object of such lists by conversation. A
    reply is a text, or an object with ``content`` and, if wanted, ``stop_reason``, ``model``,
    ``delta_chars`` and ``delay_s``.

    Raises InvalidInput, with the path and the place in it.
    """
    try:
        written = msgspec.json.decode(path.read_bytes(), type=_Line | dict[str, _Line])
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidInput(f"{path} is not a script: {error}") from error
    if isinstance(written, list):
        return _line(written)
    return {conversation: _line(line) for conversation, line in written.items()}


def _line(written: _Line) -> list[Scripted]:
    return [one if isinstance(one, str) else one.reply() for one in written]


class RandomFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Random faults. Each answer has a fault with probability *rate*, chosen from *kinds*.

    The fault of a conversation's n-th request depends only on *seed*, the conversation and n. So a
    run can be repeated, even if other conversations run at the same time.
    """

    seed: int
    rate: float = 0.1
    kinds: tuple[WireFault, ...] = (
        WireFault.rate_limited(0.5),
        WireFault.overloaded(),
        WireFault.server_error(),
        WireFault.stall(2.0),
        WireFault.cut(),
        WireFault.reset(),
        WireFault.error_event(after_events=3),
    )
    max_bytes: int = 2000
    """A fault after some bytes of the body comes within this many bytes."""

    def choose(self, conversation: str, number: int) -> WireFault | None:
        """The fault of a conversation's request *number*, counted from 0."""
        rng = Random(f"{self.seed}/{conversation}/{number}")
        if rng.random() >= self.rate:
            return None
        fault = rng.choice(self.kinds)
        if fault.kind in ("cut", "reset", "stall") and rng.random() < 0.8:
            return msgspec.structs.replace(fault, after_bytes=rng.randrange(self.max_bytes))
        return fault


Faults: TypeAlias = (
    Iterable[WireFault | None] | Callable[[Received], WireFault | None] | RandomFaults | None
)


class FaultSchedule:
    """The remaining faults. ``choose`` is called once for each valid request, in order."""

    def __init__(self, faults: Faults) -> None:
        self._chance: RandomFaults | None = None
        self._chosen: Callable[[Received], WireFault | None] | None = None
        self._listed: Iterator[WireFault | None] = iter(())
        if isinstance(faults, RandomFaults):
            self._chance = faults
        elif callable(faults):
            self._chosen = faults
        elif faults is not None:
            self._listed = iter(faults)
        self._seen: Counter[str] = Counter()

    def choose(self, received: Received) -> WireFault | None:
        """The fault of the answer to *received*."""
        if self._chance is not None:
            number = self._seen[received.conversation]
            self._seen[received.conversation] += 1
            return self._chance.choose(received.conversation, number)
        if self._chosen is not None:
            return self._chosen(received)
        return next(self._listed, None)
