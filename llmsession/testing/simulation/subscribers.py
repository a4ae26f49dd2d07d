"""Who listens to a simulated session, over all of its lives, and who answers its calls."""

from __future__ import annotations

from random import Random

import anyio

from llmsession.errors import SessionError
from llmsession.session.core.subscriptions import Lagged
from llmsession.session.handles.session import LLMSession, live_state
from llmsession.session.values.config import ToolResult
from llmsession.turns.blocks import encode_json
from llmsession.turns.previews import ToolUse
from llmsession.turns.records import ToolsRequested

from ..recording.entries import ObservedEvent, SubscriptionLog
from ..recording.fingerprints import digest
from ..recording.recorder import Recorder
from ..workload.model import words
from ..workload.subscribers import observed
from .clients import RETRY_S, SimSession
from .processes import Incarnation

__all__ = ["Subscribers"]


class Subscribers:
    """The subscribers of one session, and the caller that runs its tools."""

    def __init__(self, session: SimSession, recorder: Recorder, seed: str) -> None:
        self._session = session
        self._recorder = recorder
        self._seed = f"{seed}/{session.name}"
        self._subscribers = 0

    async def follow(self, *, vanishing: bool = False) -> None:
        """Read all from the first record on, over every life of the session; a *vanishing*
        subscriber leaves now and then, and goes on from its cursor."""
        random = Random(f"{self._seed}/following/{vanishing}")
        after: int | None = 0
        while after is not None:
            found = await self._session.reach() if not self._session.is_over else None
            if found is None:
                return
            at_most = random.choice((1, 5, 40)) if vanishing else None
            after = await self._listen(*found, after, at_most)
            if vanishing and after is not None:
                await anyio.sleep(random.uniform(0, 0.05))

    async def _listen(
        self, incarnation: Incarnation, handle: LLMSession, after: int, at_most: int | None
    ) -> int | None:
        self._subscribers += 1
        subscriber, place = self._subscribers, self._recorder.place()
        seen: list[ObservedEvent] = []
        cursor, ending = after, "vanished"

        async def read() -> None:
            nonlocal cursor, ending
            if not 0 <= after <= live_state(handle).head:
                return  # a zombie's: what it knows is less than what was seen
            subscription = handle.subscribe(after=after)
            try:
                async for event in subscription:
                    if isinstance(event, Lagged):
                        ending = "lagged"
                        break
                    if not isinstance(event, ToolUse):
                        seen.append(observed(event))
                    if at_most is not None and len(seen) >= at_most:
                        break
                else:
                    # What a zombie's subscribers do not hear of, nobody can tell them.
                    whole = self._session.is_over and incarnation.owns(self._session.name)
                    ending = "closed" if whole else "vanished"
            except SessionError:
                ending = "vanished"
            finally:
                cursor = subscription.cursor
                subscription.close()

        try:
            await incarnation.within(read)
        finally:  # a zombie's is never told of the end: what it saw counts all the same
            self._recorder.note(
                SubscriptionLog(
                    session=self._session.name, subscriber=subscriber, after=after, cursor=cursor,
                    ending=ending, seen=tuple(seen), **place,
                )
            )  # fmt: skip
        if ending == "closed":
            return None
        if not seen:
            await anyio.sleep(RETRY_S)
        return cursor

    # The caller's tools.

    async def answer_calls(self) -> None:
        """Answer the calls that the caller runs: in time, in part, late, twice, or not at all."""
        async with anyio.create_task_group() as group:
            while not self._session.is_over:
                found = await self._session.reach()
                if found is None:
                    break
                incarnation, handle = found

                async def answer(
                    incarnation: Incarnation = incarnation, handle: LLMSession = handle
                ) -> None:
                    again = [call.id for call in handle.open_calls()]
                    group.start_soon(self._answer, again)
                    try:
                        async for event in handle.subscribe():
                            if isinstance(event, ToolsRequested):
                                calls = [each.id for each in event.calls if each.runner == "caller"]
                                group.start_soon(self._answer, calls)
                    except SessionError:
                        pass

                await incarnation.within(answer)
                await anyio.sleep(RETRY_S)
            group.cancel_scope.cancel()

    async def _answer(self, calls: list[str]) -> None:
        if not calls:
            return
        random = Random(f"{self._seed}/{calls}")
        await anyio.sleep(random.choice((0.0, 0.0, 0.001, 0.01)))
        results = [_result(random, call_id) for call_id in calls]
        kind = random.random()
        if kind < 0.5:
            await self._submit(results, command_id=f"results {calls[0]}")
        elif kind < 0.65:  # in part, in any order
            random.shuffle(results)
            for result in results:
                await self._submit([result])
        elif kind < 0.8:  # twice: under an id, or a duplicate without one
            command_id = f"results {calls[0]}" if random.random() < 0.5 else None
            await self._submit(results, command_id=command_id)
            await self._submit(results, command_id=command_id)
        elif kind < 0.9:  # past the deadline
            await anyio.sleep(random.uniform(0.15, 0.3))
            await self._submit(results)

    async def _submit(self, results: list[ToolResult], *, command_id: str | None = None) -> None:
        await self._session.ask(
            "submit",
            lambda handle: handle.submit_tool_results(results, command_id=command_id),
            answers=tuple((each.call_id, digest(encode_json(each.content))) for each in results),
            command_id=command_id,
        )


def _result(random: Random, call_id: str) -> ToolResult:
    return ToolResult(
        call_id,
        words(random, random.choice((20, 200, 1200, 4000))),
        is_error=random.random() < 0.1,
        compact_summary="in short" if random.random() < 0.3 else None,
    )
