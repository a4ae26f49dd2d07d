"""A recording to talk to: its lines are offered, its replies played, its results submitted."""

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
    """One recorded conversation, at the turn that is next.

    What the reader left out of the file is said on stderr, and how many conversations are not
    played. Raises InvalidInput for a file that cannot be played.
    """

    def __init__(self, path: Path, *, delay_s: float) -> None:
        try:
            conversations = read(read_file(path))
        except (InvalidInput, TranscriptError) as error:
            raise InvalidInput(f"{path}: {error}") from error
        if not conversations or not conversations[0].messages:
            raise InvalidInput(f"{path}: no conversation in it")
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
        """The model that was recorded, for the title."""
        models = [message.model for message in self._conversation.messages if message.model]
        return models[0] if models else "recorded"

    def tools(self) -> tuple[Tool, ...]:
        """The tools that the recording calls."""
        return tuple(tool for tool in recorded_tools(self._conversation) if isinstance(tool, Tool))

    def config(self) -> SessionConfig:
        """A session that the recording can be played in."""
        return SessionConfig(model=self.model, tools=self.tools())

    @property
    def line(self) -> str:
        """What the user said next in the recording; "" at its end."""
        if self._next >= len(self._turns):
            return ""
        blocks = parse_blocks(self._turns[self._next].messages[0].body)
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))

    @property
    def is_over(self) -> bool:
        """Was every turn of it played?"""
        return self._next >= len(self._turns)

    def begin(self) -> None:
        """The next turn is played, whatever the user said."""
        self.provider.rewind(self._next)
        self._step = self._answered = 0

    def saw(self, event: object) -> None:
        """A step asked for its tools."""
        if isinstance(event, ToolsRequested):
            self._step, self._answered = event.step, 0

    def result(self, call: ToolUse) -> ToolResult:
        """The recorded result of *call*: by place, for a repeated call has another id."""
        steps = self._turns[self._next].steps
        step = steps[self._step - 1] if 0 < self._step <= len(steps) else None
        index, self._answered = self._answered, self._answered + 1
        recorded = step.results.get(step.calls[index]) if step and index < len(step.calls) else None
        if recorded is None:
            return ToolResult(call.id, NO_RESULT, is_error=True)
        return recorded.answering(call.id)

    def end(self, *, is_committed: bool) -> None:
        """The turn has ended; one that was dropped is offered again."""
        self._next += is_committed

    def rewound(self, turns: int) -> None:
        """So many turns are in the history now."""
        self._next = min(turns, len(self._turns))
