"""A recording for ``chat``: offers its lines, plays its replies, and submits its tool results."""

from __future__ import annotations

from pathlib import Path

from llmsession.errors import InvalidInput, TranscriptError
from llmsession.providers import ReplayProvider
from llmsession.session.values.config import SessionConfig, Tool, ToolResult
from llmsession.testing.replay.recorded_turns import NO_RESULT, read_turns, recorded_tools
from llmsession.transcripts import read
from llmsession.turns.blocks import TextBlock, parse_blocks
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import ToolsRequested

from ..common.files import print_failure, print_left_out, read_file

__all__ = ["Recording"]


class Recording:
    """One recorded conversation, and the position of the next turn in it.

    Prints on stderr what the reader left out of the file, and how many other conversations of the
    file are not played. Raises InvalidInput for a file that cannot be played.
    """

    def __init__(self, path: Path, *, delay_s: float) -> None:
        try:
            conversations = read(read_file(path))
        except (InvalidInput, TranscriptError) as error:
            raise InvalidInput(f"{path}: {error}") from error
        if not conversations or not conversations[0].messages:
            raise InvalidInput(f"{path}: the file contains no conversation")
        print_left_out(path, conversations)
        if len(conversations) > 1:
            print_failure(path, f"{len(conversations)} conversations; only the first one is played")
        self._conversation = conversations[0]
        self._turns = read_turns(self._conversation)
        self.provider = ReplayProvider(self._conversation.messages, delay_s=delay_s)
        self._next = 0
        self._step = 0
        self._answered = 0

    @property
    def model(self) -> str:
        """The recorded model, for the heading."""
        models = [message.model for message in self._conversation.messages if message.model]
        return models[0] if models else "recorded"

    def tools(self) -> tuple[Tool, ...]:
        """The tools that the recorded replies call."""
        return tuple(tool for tool in recorded_tools(self._conversation) if isinstance(tool, Tool))

    def config(self) -> SessionConfig:
        """The configuration of a session that plays the recording."""
        return SessionConfig(model=self.model, tools=self.tools())

    @property
    def line(self) -> str:
        """The recorded user's next line, or "" at the end."""
        if self._next >= len(self._turns):
            return ""
        blocks = parse_blocks(self._turns[self._next].messages[0].body)
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))

    @property
    def is_over(self) -> bool:
        """Whether all recorded turns were played."""
        return self._next >= len(self._turns)

    def begin(self) -> None:
        """Play the next recorded turn, whatever the user typed."""
        self.provider.rewind(self._next)
        self._step = self._answered = 0

    def saw(self, event: object) -> None:
        """Note an event of the turn, to know which step's tools are called."""
        if isinstance(event, ToolsRequested):
            self._step, self._answered = event.step, 0

    def result(self, call: ToolUse) -> ToolResult:
        """The recorded result of *call*. It is found by position: a repeated call has a new id."""
        steps = self._turns[self._next].steps
        step = steps[self._step - 1] if 0 < self._step <= len(steps) else None
        index, self._answered = self._answered, self._answered + 1
        recorded = step.results.get(step.calls[index]) if step and index < len(step.calls) else None
        if recorded is None:
            return ToolResult(call.id, NO_RESULT, is_error=True)
        return recorded.answering(call.id)

    def end(self, *, is_committed: bool) -> None:
        """End the turn. One that was not committed is offered again."""
        self._next += is_committed

    def rewound(self, turns: int) -> None:
        """Continue after the first *turns* turns."""
        self._next = min(turns, len(self._turns))
