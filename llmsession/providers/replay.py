"""A provider that replays recorded replies as a live stream, without a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import anyio
import msgspec

from llmsession.errors import InvalidConfig, InvalidInput, ProviderError
from llmsession.turns.blocks import block_type, encode_json, split_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    DeltaKind,
    ReplyEnded,
    ReplyStarted,
    StreamEvent,
)

__all__ = ["ReplayProvider"]

_Fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_STREAMED: dict[str, tuple[str, DeltaKind]] = {
    "text": ("text", "text"),
    "thinking": ("thinking", "thinking"),
    "tool_use": ("input", "input"),
}
"""For each block type, the field that is streamed and the kind of its deltas."""
_EXHAUSTED = ("wait", "fail", "repeat")


class ReplayProvider:
    """Replays the assistant messages of *messages*, one recorded turn for each new turn.

    The first new turn of the session gets the replies of the first recorded turn, and so on. Within
    a turn, step 1 gets the first reply, step 2 the second. A further attempt at a step gets the
    same reply again. After ``rewind`` the next new turn gets an earlier recorded turn.

    *exhausted* says what happens if the recording has no such turn or step, for example because a
    steer added a step:

    - "wait" never answers, like a model that hangs.
    - "fail" raises a fatal ProviderError.
    - "repeat" starts the recording again after its last turn. An additional step gets the turn's
      last reply without tool calls; a turn without such a reply fails.

    *delta_chars* is the length of a delta in characters, and *delay_s* the pause in seconds before
    each. By default one provider plays one conversation to one session. With *shared* it plays the
    conversation to any number of sessions, also after a restart: turn n of each session gets the
    nth recorded turn.

    Raises InvalidConfig for invalid arguments.
    """

    name = "replay"

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        delta_chars: int = 48,
        delay_s: float = 0.0,
        exhausted: str = "wait",
        shared: bool = False,
        profile: Profile | None = None,
    ) -> None:
        if delta_chars < 1 or delay_s < 0 or exhausted not in _EXHAUSTED:
            raise InvalidConfig(
                "replay needs delta_chars >= 1, delay_s >= 0 and exhausted 'wait', 'fail' or"
                f" 'repeat', got {delta_chars}, {delay_s}, {exhausted!r}"
            )
        self._turns = _replies_by_turn(messages)
        self._played: dict[int, int] = {}
        self._next = 0
        self._delta_chars = delta_chars
        self._delay_s = delay_s
        self._exhausted = exhausted
        self._shared = shared
        self._profile = profile or Profile(name="replay", counts_requests=False)

    def profile(self, model: str) -> Profile:
        """The profile that the provider was constructed with, whatever *model* is."""
        return self._profile

    def rewind(self, recorded_turn: int) -> None:
        """Let the next new turn play the recorded turn *recorded_turn*, counted from 0.

        Raises InvalidInput for a negative number. A number beyond the recording is treated as
        *exhausted* says.
        """
        if recorded_turn < 0:
            raise InvalidInput(f"recorded_turn counts from 0, got {recorded_turn}")
        self._next = recorded_turn

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """The recorded reply for this step, in deltas. Can be cancelled before each of them. Raises
        ProviderError as *exhausted* says.
        """
        if not tag.turn:
            raise ProviderError("a recording cannot write summaries", kind="fatal")
        reply = self._choose(tag)
        if reply is None:
            if self._exhausted != "wait":
                raise ProviderError(
                    f"the recording has no reply for step {tag.step} of this turn", kind="fatal"
                )
            await anyio.sleep_forever()
            return
        for event in self._events(reply):
            if isinstance(event, BlockDelta):
                # even a delay of 0 lets others run, and a cancellation take effect
                await anyio.sleep(self._delay_s)
            yield event

    def _choose(self, tag: StepTag) -> Message | None:
        recorded = self._recorded_turn(tag.turn)
        replies = self._turns[recorded] if recorded < len(self._turns) else []
        if tag.step <= len(replies):
            return replies[tag.step - 1]
        if self._exhausted != "repeat":
            return None
        return next((reply for reply in reversed(replies) if not reply.tool_calls), None)

    def _recorded_turn(self, turn: int) -> int:
        if self._shared:
            recorded = turn - 1
        else:
            if turn not in self._played:
                self._played[turn] = self._next
                self._next += 1
            recorded = self._played[turn]
        if self._exhausted == "repeat" and self._turns:
            recorded %= len(self._turns)
        return recorded

    def _events(self, reply: Message) -> list[StreamEvent]:
        events: list[StreamEvent] = [ReplyStarted(reply.model or "replay", reply.usage)]
        for index, raw in enumerate(split_blocks(reply.body)):
            events.extend(self._block_events(index, bytes(raw)))
        events.append(ReplyEnded(reply.stop_reason or _stop_reason(reply), reply.usage))
        return events

    def _block_events(self, index: int, raw: bytes) -> list[StreamEvent]:
        """One block as a provider streams it: opened empty, filled by deltas, closed."""
        field, kind = _STREAMED.get(block_type(raw), ("", "text"))
        fields = dict(_Fields.decode(raw))
        whole = bytes(fields.get(field, b""))
        if not whole or (kind != "input" and not whole.startswith(b'"')):  # nothing to stream
            return [BlockStarted(index, msgspec.Raw(raw)), BlockStopped(index)]
        text = whole.decode() if kind == "input" else msgspec.json.decode(whole, type=str)
        fields[field] = msgspec.Raw(b"{}" if kind == "input" else b'""')
        size = self._delta_chars
        deltas = [
            BlockDelta(index, kind, text[start : start + size])
            for start in range(0, len(text), size)
        ]
        return [BlockStarted(index, msgspec.Raw(encode_json(fields))), *deltas, BlockStopped(index)]


def _replies_by_turn(messages: Sequence[Message]) -> list[list[Message]]:
    turns: dict[int, list[Message]] = {}
    for message in messages:
        replies = turns.setdefault(message.turn, [])
        if message.is_assistant:
            replies.append(message)
    return list(turns.values())


def _stop_reason(reply: Message) -> str:
    # Recordings often lack the stop reason, because their writers stored the message before the
    # stream had ended.
    return "tool_use" if reply.tool_calls else "end_turn"
