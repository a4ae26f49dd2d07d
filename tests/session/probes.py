"""What the suites of this folder share: virtual runs, a gated model, and independent checks."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec

from llmsession.compaction.rules.check import check_request
from llmsession.session.handles.session import live_state
from llmsession.session.log.state import OpenTurn, SessionState
from llmsession.session.tasks.owner_lease import OwnerLease
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Appended, AppendResult, Batch, Owner, Store
from llmsession.testing.faulty_store import FaultyStore
from llmsession.turns.messages import Message
from llmsession.turns.records import Record, decode_record
from llmsession.turns.request import Profile, Request, StepTag
from llmsession.turns.stream import StreamEvent
from tests.virtual_time import virtual_backend

__all__ = [
    "NO_LEASE",
    "STATE_FIELDS",
    "GatedProvider",
    "after_a_crash",
    "delivering",
    "differences",
    "encode_plain",
    "live_state",
    "log_of",
    "request_pairs",
    "run_virtually",
    "said",
    "settle",
    "task_named",
    "unpaired",
]

NO_LEASE = OwnerLease(
    object(),
    Owner("nobody"),
    live=tuple,
    found=lambda session, epoch: None,
    run_work=lambda name, work: None,
    log_trouble=lambda name, **fields: None,
)
"""As it is with a store that has no leases."""

T = TypeVar("T")


def run_virtually(backend: str, scenario: Callable[[], Awaitable[T]]) -> T:
    """*scenario* in virtual time, for suites that run many of them in one test."""
    name, options = virtual_backend(backend, turn_s=20e-6)  # about what it takes
    return anyio.run(scenario, backend=name, backend_options=options)


async def settle(seconds: float = 0.001) -> None:
    """Until nothing can run any more: only then does virtual time move."""
    await anyio.sleep(seconds)


@asynccontextmanager
async def delivering(store: Store) -> AsyncIterator[None]:
    """Let a slow *store* give its answers when the body fails. Without them a manager is not left,
    and a test that fails would hang."""
    try:
        yield
    except BaseException:
        if isinstance(store, FaultyStore):
            store.deliver()
        raise


class GatedProvider:
    """A model that says only what the test lets it say: ``say`` feeds the open stream."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.name = "gated"
        self._profile = profile or Profile(name="gated")
        self.requests: list[Request] = []
        self.tags: list[StepTag] = []
        self.opened = 0
        self.closed = 0
        self._gate: Any = None

    def profile(self, model: str) -> Profile:
        return self._profile

    def say(self, *events: StreamEvent | BaseException) -> None:
        for event in events:
            self._gate.send_nowait(event)

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        self.tags.append(tag)
        self.opened += 1
        gate, events = anyio.create_memory_object_stream[StreamEvent | BaseException](math.inf)
        self._gate = gate
        try:
            with gate, events:
                async for event in events:
                    if isinstance(event, BaseException):
                        raise event
                    yield event
        finally:
            self.closed += 1


def said(messages: Iterable[Message]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(role, blocks) of each message, read without any of the session's own code."""
    return [(message.role, json.loads(bytes(message.body))) for message in messages]


def request_pairs(request: Request) -> list[tuple[str, list[dict[str, Any]]]]:
    """(role, blocks) of each message of a request, out of the bytes that are sent."""
    sent = json.loads(request.encode())
    return [(message["role"], message["content"]) for message in sent["messages"]]


def unpaired(pairs: Sequence[tuple[str, list[dict[str, Any]]]]) -> list[str]:
    """Every call that the next user message does not answer exactly once, and every answer that
    no call of the assistant message before it asked for."""
    found: list[str] = []
    asked: list[str] = []
    for role, blocks in [*pairs, ("end", [])]:
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(asked) != sorted(answered):
            found.append(f"asked {asked}, answered {answered} by {role}")
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if asked and role != "assistant":
            found.append(f"{role} asked {asked}")
    return found


def assert_request_is_sound(request: Request, profile: Profile) -> None:
    """It passes the session's own rules and the independent pairing check."""
    assert check_request(request, profile) == ()
    assert unpaired(request_pairs(request)) == []


async def log_of(store: Store, session: str) -> list[Record]:
    return [decode_record(stored.body) for stored in await store.read(session)]


async def after_a_crash(
    store: Store, up_to: int | None = None, *, session: str = "s"
) -> MemoryStore:
    """What a machine has whose process died when the log had *up_to* records, or as it is now: a
    store of its own with so much of the log, held by nobody who lives."""
    copy = MemoryStore()
    lease = await copy.create(session, Owner("the dead"))
    log = await store.read(session, limit=up_to)
    results: list[AppendResult] = []
    # In the epochs that they were written in.
    for stored in log:
        record = decode_record(stored.body)
        while lease.epoch < record.epoch:
            lease = await copy.acquire(session, Owner("the dead"), takeover=True)
        copy.append(Batch(session, lease.epoch, record.seq - 1, (stored.body,)), results.append)
    assert results == [Appended(seq) for seq in range(1, len(log) + 1)]
    await copy.release(lease)
    return copy


def _plain(value: Any) -> Any:
    if isinstance(value, Message):  # compared by its fields, which are plain; there are many
        return value
    if isinstance(value, OpenTurn):
        return {name: _plain(getattr(value, name)) for name in OpenTurn.__struct_fields__}
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        fields = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return [(key, _plain(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if type(value).__module__.startswith("llmsession"):
        return {name: _plain(item) for name, item in sorted(attributes(value).items())}
    return value


def encode_plain(value: Any) -> bytes:
    """*value*, a field of a state, as JSON, with the entries of a table in their order."""
    return msgspec.json.encode(value, enc_hook=dict)


def attributes(value: Any) -> dict[str, Any]:
    slots = getattr(type(value), "__slots__", ())
    return {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})


STATE_FIELDS = (
    {*SessionState.__slots__, "history"}
    - {"_history", "_stored", "_unjoined"}  # where the messages of the history are
    - {"checksum", "snapshot_head", "sums"}
    - {"last_calls"}  # a redacted log may have them in another order
)
"""All that a state says of its session; not what it knows of the store."""


def differences(left: SessionState, right: SessionState) -> list[str]:
    """The fields in which two states differ, every field compared by value."""
    pairs = [(name, getattr(left, name), getattr(right, name)) for name in STATE_FIELDS]
    return [
        f"{name}: {_plain(mine)} != {_plain(theirs)}"
        for name, mine, theirs in pairs
        if _plain(mine) != _plain(theirs)
    ]


def task_named(name: str) -> asyncio.Task[Any]:
    """The one task of asyncio's loop with this *name*."""
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == name]
    return task
