"""Better summaries of old tool results, written by a model in the background.

The next compaction uses them; a result that is already shown in compact form keeps its text. A
result with a summary from the caller keeps that one. The model summarises no result twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from llmsession.compaction.planning.boundaries import recent_from
from llmsession.compaction.summaries.cap import result_text
from llmsession.compaction.summaries.extractive import summarise
from llmsession.turns.blocks import ToolResultBlock
from llmsession.turns.messages import Message

from ..core.core import Core
from ..tasks.worker_thread import off_loop
from .model_summary import ModelSummary, shown_chars
from .summarizer import PendingSummary, Requests, Summarizer, SummaryUnneeded

__all__ = ["ResultSummaries"]

MIN_TIMES = 4
"""A result that is not at least this many times as long as a summary is not worth a request."""
MAX_WAITING = 1_000
INLINE_CHARS = 32_000


class _OldResult(msgspec.Struct, frozen=True):
    """A result that a model may summarise, with its extracted summary ("" if it has none)."""

    result: ToolResultBlock
    tool: str | None
    summary: str


class ResultSummaries:
    """One session's summaries of tool results, at most ``max_concurrent`` at the same time.

    Only the actor calls this class.
    """

    def __init__(self, core: Core, summarizer: Summarizer) -> None:
        self._core = core
        self._summarizer = summarizer
        self._pending: dict[str, PendingSummary] = {}
        """Call id -> the summary that is being written."""
        # A list, although the first is taken: an empty deque has 600 bytes, and most are empty.
        self._queue: list[_OldResult] = []
        self._seen: dict[str, None] = {}
        """Calls whose results were summarised, are queued, or have a summary from the caller."""
        self._scanned: tuple[int, int] = (0, 0)
        """The generation, and how many of its messages were already searched for old results."""
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Is no summary being written?"""
        return not self._pending

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of the job while it runs."""
        return ("summaries",) if self._pending else ()

    def consider(self) -> None:
        """Summarise the results that have become old, and stop summaries that are no longer needed.

        Called when a step was journaled or a turn has ended.
        """
        compaction = self._core.config.compaction
        config = compaction.summariser
        self._prune()
        if config is None or not config.improve_results or compaction.enabled is False:
            return
        for old in self._newly_old():
            self._seen[old.result.tool_use_id] = None
            self._queue.append(old)
        del self._queue[:-MAX_WAITING]
        self._start()

    def _newly_old(self) -> Iterator[_OldResult]:
        state, compaction = self._core.state, self._core.config.compaction
        messages = state.context_messages()
        generation, first = self._scanned
        if generation != state.generation or first > len(messages):
            first = 0
        behind = len(messages) - first
        end = first + recent_from(
            messages[first:],
            [0] * behind,
            keep_turns=compaction.keep_recent_turns,
            keep_steps=compaction.keep_recent_steps,
            max_tokens=0,
        )
        self._scanned = (state.generation, max(first, end))
        for position in range(max(1, first), end):
            yield from self._old_results(messages[position], messages[position - 1])

    def _old_results(self, message: Message, previous: Message) -> Iterator[_OldResult]:
        state, chars = self._core.state, self._core.config.compaction.summary_chars
        if not message.is_user:
            return
        tools = {call.id: call.name for call in previous.tool_calls}
        for result in message.tool_results:
            call_id, size = result.tool_use_id, shown_chars(result, self._core.builder.profile)
            known = call_id in self._seen or call_id in state.view.shown_results
            if not known and size >= MIN_TIMES * chars:
                yield _OldResult(result, tools.get(call_id), state.summaries.get(call_id, ""))

    def _prune(self) -> None:
        # These are results of a dropped turn, and results that are now shown in compact form.
        for call_id in [call_id for call_id in self._pending if not self._is_needed(call_id)]:
            self._pending.pop(call_id).cancel()

    def _is_needed(self, call_id: str) -> bool:
        state = self._core.state
        turn = state.call_turns.get(call_id)
        stands = turn in state.open or state.ended.get(turn or 0) == "committed"
        return stands and call_id not in state.view.shown_results

    def _start(self) -> None:
        config = self._core.config.compaction.summariser
        while self._queue and not self._closed and config is not None:
            if len(self._pending) >= config.max_concurrent or not self._summarizer.may_request():
                return
            old = self._queue.pop(0)
            call_id = old.result.tool_use_id
            if not self._is_needed(call_id) or not self._is_unchanged(old):
                continue
            pending = self._summarizer.start(
                f"summary of {call_id} in {self._core.session}",
                config,
                partial(self._summarise, old),
                partial(self._summary_ended, old),
            )
            if pending is not None:
                self._pending[call_id] = pending

    def _is_unchanged(self, old: _OldResult) -> bool:
        return self._core.state.summaries.get(old.result.tool_use_id, "") == old.summary

    async def _summarise(self, old: _OldResult, summary: ModelSummary) -> str:
        result, chars = old.result, self._core.config.compaction.summary_chars
        text = result_text(result.content)
        rules = partial(summarise, text, is_error=bool(result.is_error), max_chars=chars)
        extracted = rules() if len(text) <= INLINE_CHARS else await off_loop(rules)
        if (extracted or "") != old.summary:
            raise SummaryUnneeded  # not the extracted summary, so it came from the caller
        return await summary.of_result(result, old.tool, chars)

    def _summary_ended(self, old: _OldResult, text: str | None, requests: Requests) -> None:
        call_id = old.result.tool_use_id
        was_pending = self._pending.pop(call_id, None) is not None
        stored = {}
        if (
            text
            and text != old.summary
            and was_pending
            and self._is_unchanged(old)
            and self._is_needed(call_id)
        ):
            stored = {call_id: text}
        self._summarizer.charge(requests, stored)
        self._start()

    def supersede(self, call_ids: list[str]) -> None:
        """The caller gave summaries for these calls. They replace those of the model."""
        for call_id in call_ids:
            self._seen[call_id] = None
            pending = self._pending.pop(call_id, None)
            if pending is not None:
                pending.cancel()

    def cancel(self) -> None:
        """Stop all summaries, and empty the queue."""
        pending, self._pending = self._pending, {}
        self._queue.clear()
        for summary in pending.values():
            summary.cancel()

    def close(self) -> None:
        """``cancel``, and never start a summary again."""
        self._closed = True
        self.cancel()
