"""The subscribers of one session: slow ones, and ones that leave and resume from a cursor. Also the
caller that runs tools: it answers in time, in part, late, twice, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup

from llmsession.session.core.subscriptions import Event, Lagged
from llmsession.session.handles.reply_text import text_of
from llmsession.session.values.config import ToolResult
from llmsession.turns.previews import (
    StepRestarted,
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    ToolUse,
)
from llmsession.turns.records import RecordBase, ToolsRequested, encode_record, is_terminal

from ..recording.entries import RESTARTED, Found, ObservedEvent, SubscriptionLog
from ..recording.fingerprints import digest
from ..recording.recorder import Recorder
from .client import Client, Connection
from .tools import words

__all__ = ["RETRY_S", "Subscribers", "observed"]

RETRY_S = 0.02


def observed(event: Event) -> ObservedEvent:
    """What is recorded of an event that is a record, a preview or a restart."""
    if isinstance(event, TextDelta | ThinkingDelta | ToolInputDelta):
        return ObservedEvent(0, "", event.turn, event.step, event.attempt)
    if isinstance(event, StepRestarted):
        return ObservedEvent(0, RESTARTED, event.turn, event.step, event.attempt)
    assert not isinstance(event, ToolUse | Lagged)  # the caller has left those out
    return ObservedEvent(event.seq, digest(encode_record(event)))


class _HeardText:
    """The text previews of the step that is not closed, and whether they are of its reply."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def is_wrong(self, event: Event) -> bool:
        """Does *event* close a step whose text previews were not all of its reply, in order? Lost
        ones may be missing in between."""
        if isinstance(event, TextDelta):
            self._pieces.append(event.text)
        elif isinstance(event, StepRestarted):
            self._pieces.clear()
        elif isinstance(event, RecordBase) and (whole := text_of(event)) is not None:
            pieces, self._pieces = self._pieces, []
            position = 0
            for piece in pieces:
                found = whole.find(piece, position)
                if found < 0:
                    return True
                position = found + len(piece)
        elif isinstance(event, RecordBase) and is_terminal(event):
            self._pieces.clear()
        return False


class Subscribers:
    """The subscribers of one session, and the caller that answers its tool calls. A *prompt* caller
    answers every call once, at once."""

    def __init__(
        self, client: Client, recorder: Recorder, seed: str, *, is_prompt: bool = False
    ) -> None:
        self.cursor = 0
        """What the newest subscriber that reads everything has read."""
        self._client = client
        self._recorder = recorder
        self._seed = seed
        self._is_prompt = is_prompt
        self._count = 0

    async def follow(
        self, *, is_vanishing: bool = False, pause_s: float = 0.0, client: Client | None = None
    ) -> None:
        """Read everything from the first record on, wherever the session is. A subscriber that
        *is_vanishing* leaves now and then, and resumes from its cursor or from now."""
        client = client or self._client
        random = Random(f"{self._seed}/following/{is_vanishing}")
        after: int | None = 0
        while not client.is_over:
            connection = await client.reach()
            if connection is None:
                return
            at_most = random.choice((1, 5, 40)) if is_vanishing else None
            log = await self._listen(connection, after, at_most, pause_s)
            if log.ending == "closed":
                return
            after = log.cursor
            if not log.seen:
                await anyio.sleep(RETRY_S)
            if is_vanishing:
                await anyio.sleep(random.uniform(0, 0.05))
                if random.random() < 0.2 and connection.knows_now:
                    after = None

    async def _listen(
        self, connection: Connection, after: int | None, at_most: int | None, pause_s: float
    ) -> SubscriptionLog:
        self._count += 1
        subscriber, place = self._count, self._recorder.place()
        seen: list[ObservedEvent] = []
        text = _HeardText()
        start = cursor = after or 0
        ending = ""

        async def read() -> None:
            nonlocal start, cursor, ending
            if after is not None and not connection.knows(after):
                return
            subscription = connection.session.subscribe(after=after)
            start = subscription.cursor
            try:
                async for event in subscription:
                    if isinstance(event, Lagged):
                        ending = "lagged"
                        break
                    if text.is_wrong(event):
                        self._recorder.note(
                            Found(
                                session=self._client.name,
                                invariant=2,
                                text="a subscriber was shown text that the reply does not have",
                                **place,
                            )
                        )
                    if not isinstance(event, ToolUse):
                        seen.append(observed(event))
                    if at_most is None:
                        self.cursor = subscription.cursor
                    elif len(seen) >= at_most:
                        ending = "vanished"
                        break
                    if pause_s:
                        await anyio.sleep(pause_s)
                else:
                    ending = connection.ending(is_complete=True)
            finally:
                cursor = subscription.cursor
                subscription.close()

        try:
            await connection.within(read)
        finally:  # also of a subscription that was cut off: what it read counts
            log = SubscriptionLog(
                session=self._client.name,
                subscriber=subscriber,
                after=start,
                cursor=cursor,
                ending=ending or connection.ending(is_complete=False),
                seen=tuple(seen),
                **place,
            )
            self._recorder.note(log)
        return log

    # The caller's tools.

    async def answer_calls(self) -> None:
        """Answer the calls that the caller runs, wherever the session is."""
        after: int | None = 0
        async with anyio.create_task_group() as group:
            while not self._client.is_over:
                connection = await self._client.reach()
                if connection is None:
                    return
                after = await connection.within(partial(self._offer, connection, after, group))
                await anyio.sleep(RETRY_S)

    async def _offer(
        self, connection: Connection, after: int | None, group: TaskGroup
    ) -> int | None:
        """Answer calls until the stream ends. Returns the cursor to resume from after ``Lagged``;
        None means to begin with the calls that are open then."""
        if after is None or not connection.knows(after):
            after = None
            open_calls = await connection.session.read_open_calls()
            group.start_soon(self._answer, [call.id for call in open_calls])
        subscription = connection.session.subscribe(after=after)
        try:
            async for event in subscription:
                if isinstance(event, ToolsRequested):
                    calls = [call.id for call in event.calls if call.runner == "caller"]
                    group.start_soon(self._answer, calls)
                elif isinstance(event, Lagged):
                    return event.cursor
        finally:
            subscription.close()
        return None

    async def _answer(self, calls: Sequence[str]) -> None:
        if not calls:
            return
        random = Random(f"{self._seed}/{calls}")
        whole: _Submission = ([_result(random, call_id) for call_id in calls], None)
        delay_s, submissions = (0.0, [whole]) if self._is_prompt else _submissions(random, calls)
        await anyio.sleep(delay_s)
        for results, command_id in submissions:
            if not self._client.is_over:
                await self._client.submit(results, command_id=command_id)


_Submission = tuple[list[ToolResult], str | None]


def _submissions(random: Random, calls: Sequence[str]) -> tuple[float, list[_Submission]]:
    """How the caller answers *calls*: after how long, and what it submits under which ids."""
    delay_s = random.choice((0.0, 0.0, 0.001, 0.01))
    results = [_result(random, call_id) for call_id in calls]
    whole: _Submission = (results, None)
    repeatable: _Submission = (results, f"results {calls[0]}")
    kind = random.random()
    if kind < 0.45:
        return delay_s, [random.choice((whole, repeatable))]
    if kind < 0.65:  # in part, in any order
        random.shuffle(results)
        return delay_s, [([result], None) for result in results]
    if kind < 0.75:
        return delay_s, [([*results, ToolResult("never_offered", "x")], None), whole]
    if kind < 0.85:  # twice: a repeat under an id, or a duplicate without one
        return delay_s, [random.choice((whole, repeatable))] * 2
    if kind < 0.9:
        return delay_s, [([results[0], results[0]], None), whole]
    if kind < 0.96:  # past the deadline
        return delay_s + random.uniform(0.15, 0.3), [whole]
    return 0.0, []


def _result(random: Random, call_id: str) -> ToolResult:
    return ToolResult(
        call_id,
        words(random, random.choice((20, 200, 1200, 4000))),
        is_error=random.random() < 0.1,
        compact_summary="in short" if random.random() < 0.3 else None,
    )
