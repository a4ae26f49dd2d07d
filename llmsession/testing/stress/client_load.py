"""Clients that use the sessions of a service or a cluster while something is done to it.

They send, stream, interrupt, repeat command ids, read heads and list, each choice by the seed. All
that they observe becomes a ``History``, which ``check_history`` compares with the logs. What they
do depends on the seed alone; when it happens depends on the machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import anyio
import msgspec

from llmsession.errors import (
    DuplicateToolResult,
    InvalidInput,
    Refused,
    SessionError,
    StoreError,
    TurnNotOpen,
    error_text,
)
from llmsession.session import SessionConfig, Tool, ToolResult, TurnOutcome
from llmsession.store.protocol import StoredRecord
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r

from ..checker.histories import (
    Ending,
    History,
    LogRecord,
    Operation,
    SeenRecord,
    SubscriptionHistory,
    log_record,
)

__all__ = ["ClientLoad", "LoadPlan", "read_log"]

T = TypeVar("T")

PAGE = 500
_POLICIES = (None, "drop_turn", "keep_steps", "keep_text")
_MODES = ("queue",) * 6 + ("steer", "interrupt")


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """*sessions* sessions named *name*-0 and so on, and in each *senders* tasks that pause for
    *pause_s* on average between two operations."""

    seed: int = 0
    name: str = "load"
    sessions: int = 4
    senders: int = 2
    pause_s: float = 0.1
    model: str = "recorded"


class ClientLoad:
    """The load of *plan*, by *clients* in turns. In asyncio or trio.

    ``run`` creates the sessions and works until ``stop`` is called. It then waits until every
    operation was answered, every turn has ended and every subscriber has read its end, so it ends
    only if the sessions can be used. Errors of operations are recorded; those of
    subscriptions are, too, and are in ``troubles``.
    """

    def __init__(self, clients: Sequence[ManagerInterface], plan: LoadPlan) -> None:
        self._clients = clients
        self._plan = plan
        self._stop = anyio.Event()
        self._operations: list[Operation] = []
        self._subscriptions: list[SubscriptionHistory] = []
        self._last: dict[str, int] = {}
        """By session: its newest record after all turns had ended. Owners that hand the session
        over may write more."""
        self.started = anyio.Event()
        """Set once every session has committed or dropped a turn."""
        self._begun: set[str] = set()
        self.troubles: list[str] = []
        self._progress: list[dict[str, int]] = []
        """For each that waits for progress: by session how many sends are missing."""
        self._answered = anyio.Event()

    def stop(self) -> None:
        """Begin nothing new."""
        self._stop.set()

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the sessions."""
        return tuple(f"{self._plan.name}-{number}" for number in range(self._plan.sessions))

    @property
    def errors(self) -> tuple[str, ...]:
        """The errors of all operations so far, but those that the load provokes."""
        return tuple(
            f"{operation.kind} in {operation.session}: {operation.error}"
            for operation in self._operations
            if operation.error and not operation.error.startswith("HeadMoved")
        )

    async def progressed(self, sends: int) -> None:
        """Wait until *sends* more sends were answered in every session."""
        left = dict.fromkeys(self.sessions, sends)
        self._progress.append(left)
        while any(count > 0 for count in left.values()):
            self._answered = anyio.Event()
            await self._answered.wait()
        self._progress.remove(left)

    def history(self, logs: dict[str, tuple[LogRecord, ...]]) -> History:
        """All that was observed, with the *logs* of the sessions."""
        return History(tuple(self._operations), tuple(self._subscriptions), logs)

    async def run(self) -> None:
        """Work until ``stop``, and then until everything has ended."""
        async with anyio.create_task_group() as group:
            for number, name in enumerate(self.sessions):
                group.start_soon(self._use, name, number)
            group.start_soon(self._list)

    async def _use(self, name: str, number: int) -> None:
        config = SessionConfig(
            model=self._plan.model,
            tools=(Tool(name="look", description="Look."),),
            recovery="resume" if number % 2 else "drop",
            grace_s=0.2,
        )
        client = self._client(number)
        session: SessionInterface | None = None
        while session is None:
            created = await self.observe(
                "create",
                name,
                f"client {number}",
                lambda: client.create(config, session_id=name, command_id=f"create {name}"),
            )
            session = created
            if session is None:
                await anyio.sleep(self._plan.pause_s)
        async with anyio.create_task_group() as group:
            for reader in range(2):
                follow = _Reader(self, self._client(number + reader), name, reader)
                group.start_soon(follow.run)
            async with anyio.create_task_group() as senders:
                for sender in range(self._plan.senders):
                    user = _Sender(self, self._client(number + sender), name, sender)
                    senders.start_soon(user.run)
            await self._settle(session)

    async def _settle(self, session: SessionInterface) -> None:
        """Wait until no turn is open; those that wait for a tool's result are interrupted."""
        while True:
            with suppress(SessionError):
                status = await session.read_status()
                if status.turn is None and not status.queued:
                    break
                await session.interrupt()
            await anyio.sleep(self._plan.pause_s)
        self._last[session.id] = status.seq

    async def _list(self) -> None:
        random = self.random("list")
        while not self._stop.is_set():
            client = random.choice(self._clients)
            await self.observe("list", "", "lister", client.list, _listed)
            await self.pause(random, 5)

    # For the tasks of one session.

    def _client(self, number: int) -> ManagerInterface:
        return self._clients[number % len(self._clients)]

    def random(self, name: str) -> Random:
        """Random choices of their own for the task *name*."""
        return Random(f"{self._plan.seed}/{name}")

    async def pause(self, random: Random, times: float = 1.0) -> None:
        """Pause for *times* the plan's pause on average, or until the load is stopped."""
        with anyio.move_on_after(random.expovariate(1 / (times * self._plan.pause_s))):
            await self._stop.wait()

    @property
    def is_stopped(self) -> bool:
        """Shall nothing new begin?"""
        return self._stop.is_set()

    def note_begun(self, session: str) -> None:
        """A turn of *session* ended."""
        self._begun.add(session)
        if len(self._begun) == self._plan.sessions:
            self.started.set()

    def last_of(self, session: str) -> int | None:
        """The record of *session* that its subscribers are to reach; None if it is not known
        yet."""
        return self._last.get(session)

    def add(self, subscription: SubscriptionHistory) -> None:
        """Note what a subscriber saw."""
        self._subscriptions.append(subscription)

    async def observe(
        self,
        kind: Any,
        session: str,
        client: str,
        perform: Callable[[], Awaitable[T]],
        answer: Callable[[T], dict[str, Any]] = lambda _: {},
        **fields: Any,
    ) -> T | None:
        """Perform an operation and record it with *fields* and what *answer* says of its answer.
        Returns the answer, or None if it failed."""
        invoked = anyio.current_time()
        operation = Operation(client=client, session=session, kind=kind, invoked=invoked, **fields)
        at = len(self._operations)
        self._operations.append(operation)
        try:
            answered = await perform()
        except SessionError as error:
            is_certain = isinstance(error, InvalidInput | Refused) or (
                isinstance(error, StoreError) and error.committed is False
            )
            self._operations[at] = msgspec.structs.replace(
                operation,
                completed=anyio.current_time(),
                result="failed" if is_certain else "unknown",
                error=f"{type(error).__name__}: {error_text(error)}",
            )
            return None
        self._operations[at] = msgspec.structs.replace(
            operation, completed=anyio.current_time(), result="ok", **answer(answered)
        )
        if kind == "send":
            for left in self._progress:
                left[session] -= 1
            self._answered.set()
        return answered


class _Sender:
    """One caller of one session."""

    def __init__(
        self, load: ClientLoad, manager: ManagerInterface, session: str, number: int
    ) -> None:
        self._load = load
        self._manager = manager
        self._session = session
        self._name = f"{session}/sender {number}"
        self._random = load.random(self._name)
        self._sent: list[tuple[str, str, Any]] = []
        """Sends that may be repeated: the command id, the text, the mode."""

    async def run(self) -> None:
        """Use the session until the load is stopped."""
        session = None
        while session is None:
            try:
                session = await self._manager.open(self._session)
            except SessionError:
                await self._load.pause(self._random)
                if self._load.is_stopped:
                    return
        number = 0
        async with anyio.create_task_group() as group:
            while not self._load.is_stopped:
                choice = self._random.random()
                number += 1
                if choice < 0.45:
                    group.start_soon(self._send, session, f"{self._name} {number}")
                elif choice < 0.6 and self._sent:
                    await self._repeat(session)
                elif choice < 0.75:
                    await self._interrupt(session, f"{self._name} {number}")
                elif choice < 0.9:
                    await self._read_head(session)
                else:
                    await self._send_at_head(session, f"{self._name} {number}")
                await self._load.pause(self._random)

    async def _send(self, session: SessionInterface, command_id: str) -> None:
        mode: Any = self._random.choice(_MODES)
        self._sent.append((command_id, command_id, mode))
        turn = await self._load.observe(
            "send",
            self._session,
            self._name,
            lambda: session.send(command_id, when_busy=mode, command_id=command_id),
            lambda turn: {"turn": turn.id.number},
            command_id=command_id,
        )
        if turn is not None and self._random.random() < 0.5:
            ended = await self._load.observe(
                "outcome", self._session, self._name, turn.outcome, _ended, turn=turn.id.number
            )
            if ended is not None:
                self._load.note_begun(self._session)

    async def _repeat(self, session: SessionInterface) -> None:
        """Send again what was sent, perhaps while the first one is on its way."""
        command_id, text, mode = self._random.choice(self._sent[-5:])
        await self._load.observe(
            "send",
            self._session,
            f"{self._name}, repeating,",
            lambda: session.send(text, when_busy=mode, command_id=command_id),
            lambda turn: {"turn": turn.id.number},
            command_id=command_id,
        )

    async def _interrupt(self, session: SessionInterface, command_id: str) -> None:
        policy: Any = self._random.choice(_POLICIES)
        await self._load.observe(
            "interrupt",
            self._session,
            self._name,
            lambda: session.interrupt(policy=policy, command_id=command_id),
            _interrupted,
            command_id=command_id,
        )

    async def _read_head(self, session: SessionInterface) -> None:
        if self._random.random() < 0.3:
            await self._load.observe(
                "head",
                self._session,
                self._name,
                lambda: self._manager.row(self._session),
                lambda row: {"head": row.head, "epoch": row.epoch},
            )
        else:
            await self._load.observe(
                "head",
                self._session,
                self._name,
                session.read_status,
                lambda status: {"head": status.seq, "epoch": status.epoch},
            )

    async def _send_at_head(self, session: SessionInterface, command_id: str) -> None:
        """Send to follow the last committed turn, if that is still the last one."""
        try:
            status = await session.read_status()
        except SessionError:
            return
        head = 0 if status.head is None else status.head.number
        await self._load.observe(
            "send",
            self._session,
            self._name,
            lambda: session.send(command_id, expected_head=head, command_id=command_id),
            lambda turn: {"turn": turn.id.number},
            command_id=command_id,
            expected_head=head,
        )


class _Reader:
    """A subscriber of one session: the first one reads everything and answers the calls of tools,
    the others leave and come back."""

    def __init__(
        self, load: ClientLoad, manager: ManagerInterface, session: str, number: int
    ) -> None:
        self._load = load
        self._manager = manager
        self._session = session
        self._number = number
        self._name = f"{session}/reader {number}"
        self._random = load.random(self._name)

    async def run(self) -> None:
        """Read until every turn has ended, after the load was stopped."""
        cursor, is_over = 0, False
        while not is_over:
            is_over, cursor = await self._read(cursor)
            await self._load.pause(self._random)

    async def _read(self, after: int) -> tuple[bool, int]:
        """Returns whether every turn has ended, and the seq of the last record that was read."""
        at_most = 10_000_000 if self._number == 0 else self._random.choice((1, 5, 30))
        seen: list[SeenRecord] = []
        is_over = False
        async with anyio.create_task_group() as group:
            try:
                session = await self._manager.open(self._session)
                events = session.subscribe(after=after)
                while len(seen) < at_most and not is_over:
                    with anyio.move_on_after(0.5):
                        event = await anext(events, None)
                        if event is None:
                            break
                        if isinstance(event, r.RecordBase):
                            turn = r.turn_of(event)
                            at = anyio.current_time()
                            kind = str(type(event).__struct_config__.tag)
                            seen.append(SeenRecord(at, event.seq, event.epoch, kind, turn))
                            if isinstance(event, r.ToolsRequested) and self._number == 0:
                                group.start_soon(self._answer, session, event)
                    cursor = seen[-1].seq if seen else after
                    last = self._load.last_of(self._session)
                    is_over = last is not None and cursor >= last
                events.close()
            except SessionError as error:  # outside of the group it would be in an ExceptionGroup
                trouble = f"{self._name} after {after}: {type(error).__name__}: {error_text(error)}"
                self._load.troubles.append(trouble)
        self._load.add(
            SubscriptionHistory(
                client=self._name,
                session=self._session,
                after=after,
                seen=tuple(seen),
                is_complete=is_over,
            )
        )
        return is_over, seen[-1].seq if seen else after

    async def _answer(self, session: SessionInterface, requested: r.ToolsRequested) -> None:
        """Answer the calls, unless the turn is over."""
        results = [ToolResult(call.id, "seen") for call in requested.calls]
        command_id = f"{self._session} {requested.seq}"
        try:
            await session.submit_tool_results(results, command_id=command_id)
        except (TurnNotOpen, DuplicateToolResult):
            return
        except SessionError as error:
            trouble = f"{self._name}, results: {type(error).__name__}: {error_text(error)}"
            self._load.troubles.append(trouble)


def _listed(rows: Any) -> dict[str, Any]:
    return {"listed": tuple(row.session for row in rows)}


def _ending(outcome: TurnOutcome) -> Ending:
    return Ending(outcome.turn.number, outcome.status, outcome.stop_reason)


def _ended(outcome: TurnOutcome) -> dict[str, Any]:
    return {"endings": (_ending(outcome),)}


def _interrupted(outcome: Any) -> dict[str, Any]:
    return {
        "answer": str(outcome.result),
        "turn": None if outcome.turn is None else outcome.turn.number,
        "endings": tuple(map(_ending, outcome.turns)),
    }


async def read_log(
    read: Callable[..., Awaitable[Sequence[StoredRecord]]], session: str
) -> tuple[LogRecord, ...]:
    """The whole log of *session*; *read* is ``Store.read``. Raises as it and ``log_record`` do."""
    records: list[LogRecord] = []
    while page := await read(session, after=len(records), limit=PAGE):
        records += (log_record(stored.seq, stored.epoch, stored.body) for stored in page)
    return tuple(records)
