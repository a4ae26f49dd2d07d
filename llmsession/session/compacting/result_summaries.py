"""Better summaries of old tool results, by a model, in the background.

They serve the next compaction: a result that is shown compacted already keeps its text. One that
has the caller's summary keeps that. No call is asked about twice.
"""

from __future__ import annotations

from collections import deque
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
from .summarizer import Asked, NotWanted, Requests, Summarizer

__all__ = ["ResultSummaries"]

MIN_TIMES = 4
"""A result that is shorter than so many summaries is not worth a request."""
MAX_WAITING = 1_000
INLINE_CHARS = 32_000


class _Old(msgspec.Struct, frozen=True):
    """A result that a model may summarise, and the extracted summary that it has; "" for none."""

    result: ToolResultBlock
    tool: str | None
    summary: str


class ResultSummaries:
    """Those of one session, at most ``max_concurrent`` at a time. Only the actor calls it."""

    def __init__(self, core: Core, summarising: Summarizer) -> None:
        self._core = core
        self._summarising = summarising
        self._asked: dict[str, Asked] = {}
        """Call id -> its summary on its way."""
        self._waiting: deque[_Old] = deque(maxlen=MAX_WAITING)
        self._seen: set[str] = set()
        """The calls that were asked about, wait for it, or are the caller's."""
        self._looked: tuple[int, int] = (0, 0)
        """The generation, and how many of its messages were looked at."""
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Is nothing on its way?"""
        return not self._asked

    @property
    def jobs(self) -> tuple[str, ...]:
        """The name of the job while it runs."""
        return ("summaries",) if self._asked else ()

    def consider(self) -> None:
        """A step was journaled, or a turn has ended: ask about the results that have become old,
        and forget those that are gone."""
        compaction = self._core.config.compaction
        config = compaction.summariser
        self._prune()
        if config is None or not config.improve_results or compaction.enabled is False:
            return
        for old in self._become_old():
            self._seen.add(old.result.tool_use_id)
            self._waiting.append(old)
        self._start()

    def _become_old(self) -> Iterator[_Old]:
        state, compaction = self._core.state, self._core.config.compaction
        messages = state.context_messages()
        generation, first = self._looked
        if generation != state.generation or first > len(messages):
            first = 0
        end = recent_from(
            messages,
            [0] * len(messages),
            keep_turns=compaction.keep_recent_turns,
            keep_steps=compaction.keep_recent_steps,
            max_tokens=0,
        )
        self._looked = (state.generation, max(first, end))
        for at in range(max(1, first), end):
            yield from self._of(messages[at], messages[at - 1])

    def _of(self, message: Message, before: Message) -> Iterator[_Old]:
        state, chars = self._core.state, self._core.config.compaction.summary_chars
        if not message.is_user:
            return
        tools = {call.id: call.name for call in before.tool_calls}
        for result in message.tool_results:
            call_id, size = result.tool_use_id, shown_chars(result, self._core.builder.profile)
            known = call_id in self._seen or call_id in state.view.shown_results
            if not known and size >= MIN_TIMES * chars:
                yield _Old(result, tools.get(call_id), state.summaries.get(call_id, ""))

    def _prune(self) -> None:
        # Those of a dropped turn, and those that are shown compacted by now.
        for call_id in [call_id for call_id in self._asked if not self._is_wanted(call_id)]:
            self._asked.pop(call_id).cancel()

    def _is_wanted(self, call_id: str) -> bool:
        state = self._core.state
        turn = state.call_turns.get(call_id)
        stands = turn in state.open or state.ended.get(turn or 0) == "committed"
        return stands and call_id not in state.view.shown_results

    def _start(self) -> None:
        config = self._core.config.compaction.summariser
        while self._waiting and not self._closed and config is not None:
            if len(self._asked) >= config.max_concurrent or not self._summarising.may_ask():
                return
            old = self._waiting.popleft()
            call_id = old.result.tool_use_id
            if not self._is_wanted(call_id) or not self._has_ours(old):
                continue
            asked = self._summarising.ask(
                f"summary of {call_id} in {self._core.session}",
                config,
                partial(self._made, old),
                partial(self._ended, old),
            )
            if asked is not None:
                self._asked[call_id] = asked

    def _has_ours(self, old: _Old) -> bool:
        return self._core.state.summaries.get(old.result.tool_use_id, "") == old.summary

    async def _made(self, old: _Old, summary: ModelSummary) -> str:
        result, chars = old.result, self._core.config.compaction.summary_chars
        text = result_text(result.content)
        rules = partial(summarise, text, is_error=bool(result.is_error), max_chars=chars)
        extracted = rules() if len(text) <= INLINE_CHARS else await off_loop(rules)
        if (extracted or "") != old.summary:
            raise NotWanted  # it is the caller's
        return await summary.of_result(result, old.tool, chars)

    def _ended(self, old: _Old, text: str | None, requests: Requests) -> None:
        call_id = old.result.tool_use_id
        known = self._asked.pop(call_id, None) is not None
        stored = {}
        if (
            text
            and text != old.summary
            and known
            and self._has_ours(old)
            and self._is_wanted(call_id)
        ):
            stored = {call_id: text}
        self._summarising.charge(requests, stored)
        self._start()

    def told(self, call_ids: list[str]) -> None:
        """The caller gave summaries for these results: theirs stand."""
        for call_id in call_ids:
            self._seen.add(call_id)
            asked = self._asked.pop(call_id, None)
            if asked is not None:
                asked.cancel()

    def cancel(self) -> None:
        """Stop what runs, and forget what waits."""
        asked, self._asked = self._asked, {}
        self._waiting.clear()
        for each in asked.values():
            each.cancel()

    def close(self) -> None:
        """``cancel``, and start nothing any more."""
        self._closed = True
        self.cancel()
