"""Who listens to a session under stress: slowly, for a while, again from a cursor; and the
caller that runs tools: in time, in part, late, twice, or not at all."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from llmsession.session.core.subscriptions import Event, Lagged
from llmsession.session.handles.session import LLMSession
from llmsession.session.values.config import ToolResult
from llmsession.turns.blocks import encode_json
from llmsession.turns.previews import TextDelta, ThinkingDelta, ToolInputDelta, ToolUse
from llmsession.turns.records import ToolsRequested, encode_record

from ..recording.entries import ObservedEvent, SubscriptionLog
from ..recording.fingerprints import digest
from ..recording.recorder import Recorder
from .model import words

__all__ = ["Subscribers", "observed"]


def observed(event: Event) -> ObservedEvent:
    """What a subscriber notes of an event that is a record or a preview."""
    if isinstance(event, TextDelta | ThinkingDelta | ToolInputDelta):
        return ObservedEvent(0, "", event.turn, event.step, event.attempt)
    assert not isinstance(event, ToolUse | Lagged)  # the caller has left those out
    return ObservedEvent(event.seq, digest(encode_record(event)))


class Subscribers:
    """The subscribers of one session, and the caller that answers its tool calls."""

    def __init__(self, recorder: Recorder, session: LLMSession, seed: int) -> None:
        self._recorder = recorder
        self._session = session
        self._seed = f"{seed}/{session.id}"
        self._subscribers = 0
        self._wanted = True

    def start(self, group: TaskGroup) -> None:
        """Listen from here on; each task ends when the session is closed."""
        group.start_soon(self._watch, 0.0)
        group.start_soon(self._watch, 0.002)
        group.start_soon(self._come_and_go)
        group.start_soon(self._answer_calls, group)

    def stop(self) -> None:
        """Nobody comes back any more."""
        self._wanted = False

    async def _watch(self, pause_s: float) -> None:
        """From the first record on; after ``Lagged`` again from the cursor."""
        after: int | None = 0
        while after is not None and self._wanted:
            after = await self._listen(after, pause_s=pause_s)

    async def _come_and_go(self) -> None:
        """Read a little, vanish, and resume from the cursor a little later."""
        random = Random(f"{self._seed}/vanishing")
        after: int | None = None
        while self._wanted:
            after = await self._listen(after, at_most=random.choice((1, 5, 40)))
            await anyio.sleep(random.uniform(0, 0.05))
            if random.random() < 0.2:
                after = None

    async def _listen(
        self, after: int | None, *, pause_s: float = 0.0, at_most: int | None = None
    ) -> int | None:
        """Read events and write them down; the cursor to go on from, None if it is over."""
        subscription = self._session.subscribe(after=after)
        self._subscribers += 1
        subscriber, began, place = self._subscribers, subscription.cursor, self._recorder.place()
        seen: list[ObservedEvent] = []
        ending = "stuck"
        try:
            async for event in subscription:
                if isinstance(event, Lagged):
                    ending = "lagged"
                    break
                if not isinstance(event, ToolUse):
                    seen.append(observed(event))
                if at_most is not None and len(seen) >= at_most:
                    ending = "vanished"
                    break
                if pause_s:
                    await anyio.sleep(pause_s)
            else:
                ending = "closed"
        finally:
            cursor = subscription.cursor
            subscription.close()
            self._recorder.note(
                SubscriptionLog(
                    session=self._session.id, subscriber=subscriber, after=began, cursor=cursor,
                    ending=ending, seen=tuple(seen), **place,
                )
            )  # fmt: skip
        return None if ending == "closed" else cursor

    # The caller's tools.

    async def _answer_calls(self, group: TaskGroup) -> None:
        after: int | None = 0
        while after is not None:
            subscription = self._session.subscribe(after=after)
            after = None
            async for event in subscription:
                if isinstance(event, ToolsRequested):
                    calls = [call.id for call in event.calls if call.runner == "caller"]
                    group.start_soon(self._answer, calls)
                elif isinstance(event, Lagged):
                    after = event.cursor

    async def _answer(self, calls: list[str]) -> None:
        if not calls:
            return
        random = Random(f"{self._seed}/{calls}")
        await anyio.sleep(random.choice((0.0, 0.0, 0.001, 0.01)))
        results = [self._result(random, call_id) for call_id in calls]
        kind = random.random()
        if kind < 0.45:
            await self._submit(results)
        elif kind < 0.65:  # in part, in any order
            random.shuffle(results)
            for result in results:
                await self._submit([result])
        elif kind < 0.75:
            await self._submit([*results, ToolResult("never_offered", "x")])
            await self._submit(results)
        elif kind < 0.85:  # twice: a repeat under an id, a duplicate without one
            command_id = f"results {calls[0]}" if random.random() < 0.5 else None
            await self._submit(results, command_id=command_id)
            await self._submit(results, command_id=command_id)
        elif kind < 0.9:
            await self._submit([results[0], results[0]])
            await self._submit(results)
        elif kind < 0.96:  # past the deadline
            await anyio.sleep(random.uniform(0.15, 0.3))
            await self._submit(results)

    def _result(self, random: Random, call_id: str) -> ToolResult:
        return ToolResult(
            call_id,
            words(random, random.choice((20, 200, 1200, 4000))),
            is_error=random.random() < 0.1,
            compact_summary="in short" if random.random() < 0.3 else None,
        )

    async def _submit(self, results: list[ToolResult], *, command_id: str | None = None) -> None:
        answers = tuple((each.call_id, digest(encode_json(each.content))) for each in results)
        submit: Any = partial(self._session.submit_tool_results, results, command_id=command_id)
        await self._recorder.call(
            self._session, "submit", submit, answers=answers, command_id=command_id
        )
