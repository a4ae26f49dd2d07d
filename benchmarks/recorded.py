"""What the benchmarks' models say: recorded messages, and a provider that plays one of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from llmsession import Content, Message, Profile, ReplayProvider, Request, Role, StepTag
from llmsession.turns import StreamEvent
from llmsession.turns.blocks import encode_blocks

__all__ = ["Replays", "recorded_message"]


def recorded_message(turn: int, role: Role, content: Content) -> Message:
    """A message of the benchmarks' recorded session."""
    body = encode_blocks(content)
    return Message(id=f"b/{role}{turn}", session="b", turn=turn, role=role, body=body)


class Replays:
    """Plays *messages* from their beginning to every request, whatever it asks."""

    name = "replay"

    def __init__(
        self, messages: tuple[Message, ...], *, delta_chars: int = 48, delay_s: float = 0.0
    ) -> None:
        self._messages = messages
        self._delta_chars = delta_chars
        self._delay_s = delay_s

    def profile(self, model: str) -> Profile:
        """The replay's own."""
        return Profile(name=self.name, counts_requests=False)

    def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        """A provider plays one conversation, so each request gets one of its own."""
        provider = ReplayProvider(
            self._messages, delta_chars=self._delta_chars, delay_s=self._delay_s
        )
        return provider.stream(request, StepTag(1, 1, 1))
