"""A connection without a transport: what gRPC's calls, and any other transport, rely on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
import pytest

from llmsession import MemoryStore, SessionManager, Store, StoreError, records
from llmsession.providers import Provider
from llmsession.session.manager import runtime_of
from llmsession.store import SessionRow
from llmsession.store.protocol import AppendResult, Batch, StoredRecord
from llmsession.testing.scripted import Script, ScriptedProvider, call, never, say
from llmsession.transport import Connection, Limits, Service
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_server, encode
from llmsession.turns import (
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Profile,
    ReplyEnded,
    ReplyStarted,
    Request,
    StepTag,
    StreamEvent,
    Usage,
)
from tests.transport.places import CONFIG, until

M = TypeVar("M")

pytestmark = pytest.mark.real_time


class Counted:
    """An observer that counts."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str | None]] = []

    def answered(self, kind: str, error: str | None) -> None:
        self.answers.append((kind, error))


class Bare:
    """A connection whose frames a test carries."""

    def __init__(self, service: Service) -> None:
        self.woken = 0
        self.connection: Connection = service.connect("test", self._wake)
        self.service = service

    def _wake(self) -> None:
        self.woken += 1

    def say(self, message: w.FromClient) -> None:
        self.connection.receive(encode(message))

    async def hear(self) -> w.FromServer:
        while True:
            frame = self.connection.take()
            if frame is not None:
                return decode_from_server(frame)
            await asyncio.sleep(0.001)

    async def hear_a(self, kind: type[M]) -> M:
        """The next message, which must be of *kind*."""
        message = await self.hear()
        assert isinstance(message, kind), message
        return message


@asynccontextmanager
async def bare(
    script: Script = (),
    *,
    provider: Provider | None = None,
    observer: Counted | None = None,
    limits: Limits | None = None,
    store: Store | None = None,
) -> AsyncIterator[Bare]:
    async with (
        asyncio.timeout(100),
        SessionManager(
            provider=provider or ScriptedProvider(script), store=store or MemoryStore()
        ) as manager,
        Service(manager, observer=observer, limits=limits) as service,
    ):
        await manager.create(CONFIG, session_id="s")
        on = Bare(service)
        on.say(w.Hello(versions=(1, 2)))
        welcome = await on.hear_a(w.Welcome)
        assert welcome.version == w.VERSION
        yield on
        on.connection.close()


async def test_one_call_is_answered_without_the_outbox() -> None:
    counted = Counted()
    async with bare(["hello"], observer=counted) as on:
        content = msgspec.Raw(b'"hi"')
        frame = await on.connection.call(w.Send(id=1, session="s", content=content), 64)
        reply = decode_from_server(frame)
        assert isinstance(reply, w.Reply)
        assert msgspec.json.decode(reply.body, type=w.Accepted) == w.Accepted(1)
        ended = decode_from_server(
            await on.connection.call(w.Outcome(id=2, session="s", turn=1), 64)
        )
        assert isinstance(ended, w.Reply)
        wrong = decode_from_server(await on.connection.call(w.Status(id=3, session="t"), 64))
        assert isinstance(wrong, w.Error)
        assert wrong.code == "SessionNotFound"
        assert on.connection.take() is None
        assert counted.answers == [
            ("send", None),
            ("outcome", None),
            ("status", "SessionNotFound"),
        ]


async def test_commands_that_were_refused_do_not_keep_their_session_in_memory() -> None:
    content = msgspec.Raw(b'"ok"')
    refused: list[w.Command[Any]] = [
        w.Submit(id=1, session="s", results=(w.Result("c1", content),)),
        w.Send(id=2, session="s", content=content, expected_head=7),
        w.Rewind(id=3, session="s", to=9),
        w.Outcome(id=4, session="s", turn=9),
        w.Status(id=5, session="t"),
    ]
    async with bare() as on:
        gc.collect()
        gc.disable()
        try:
            for command in refused:
                on.say(command)
                await on.hear_a(w.Error)
            on.connection.close()
            await until(lambda: on.service.statistics().connections == 0)
            assert await runtime_of(on.service.manager).evict_idle() == 1
        finally:
            gc.enable()


async def test_frames_of_one_session_are_begun_in_order_though_it_is_cold() -> None:
    async with bare(lambda request, tag: "ok") as on:
        await runtime_of(on.service.manager).evict_idle()
        for number in range(30):
            on.say(w.Send(id=number, session="s", content=msgspec.Raw(b'"%d"' % number)))
            if number == 19:
                on.say(w.Interrupt(id=100, session="s"))
        turns: dict[int, int] = {}
        while len(turns) < 30:
            reply = await on.hear()
            if isinstance(reply, w.Reply) and reply.id < 100:
                turns[reply.id] = msgspec.json.decode(reply.body, type=w.Accepted).turn
        assert [turns[number] for number in range(30)] == list(range(1, 31))
        session = await on.service.manager.open("s")
        ends = [(await session.turn(number).outcome()).status for number in range(1, 31)]
        assert ends == ["aborted"] * 20 + ["committed"] * 10


async def test_a_command_does_not_overtake_large_results_that_need_a_thread() -> None:
    async with bare([call("ls", id="c1"), "done"]) as on:
        session = await on.service.manager.open("s")
        await session.configure(tools=[{"name": "ls"}])
        await session.send("look")
        await until(lambda: bool(session.open_calls()))
        large = w.Result("c1", msgspec.Raw(b'"%s"' % (b"x" * 400_000)))
        on.say(w.Submit(id=1, session="s", results=(large,)))
        on.say(w.Label(id=2, session="s", labels={"a": "b"}))
        replies = [await on.hear(), await on.hear()]
        assert [reply.id for reply in replies if isinstance(reply, w.Reply)] == [1, 2]
        log = [records.decode_record(row.body) for row in await on.service.manager.store.read("s")]
        kinds = [type(record) for record in log]
        assert kinds.index(records.ToolsAnswered) < kinds.index(records.SessionLabelled)


LARGE = "x" * 900_000


async def _answers_of_a_client_that_does_not_read(on: Bare, commands: int) -> None:
    """Fails unless the answers wait in little memory until they are read, and all come then."""
    most = Limits().outgoing_bytes + len(LARGE)
    for _ in range(20 * commands):  # whatever can be done without reading is done then
        await asyncio.sleep(0)
    held = on.connection.outbox.bytes
    assert len(LARGE) < held < most
    for _ in range(commands):
        reply = await on.hear_a(w.Reply)
        assert len(reply.body) > len(LARGE)
        assert on.connection.outbox.bytes < most
    assert on.connection.open_requests == 0


@pytest.mark.parametrize("is_open", [False, True], ids=["ended", "open"])
async def test_outcomes_wait_in_little_memory_for_a_client_that_does_not_read(
    is_open: bool,
) -> None:
    async with bare([never() if is_open else "ok"]) as on:
        session = await on.service.manager.open("s")
        turn = await session.send(LARGE)
        if not is_open:
            await turn.outcome()
        for number in range(30):
            on.say(w.Outcome(id=number, session="s", turn=1))
        if is_open:
            await until(lambda: on.connection.open_requests == 30)
            await session.interrupt()
        await _answers_of_a_client_that_does_not_read(on, 30)


async def test_repeats_of_an_interrupt_wait_in_little_memory_for_a_client_that_does_not_read() -> (
    None
):
    async with bare([never()]) as on:
        session = await on.service.manager.open("s")
        await session.send(LARGE)
        for number in range(30):
            on.say(w.Interrupt(id=number, session="s", command_id="i"))
        await _answers_of_a_client_that_does_not_read(on, 30)


async def test_a_client_that_is_gone_leaves_no_outcome_that_waits_for_room() -> None:
    async with bare(["ok"]) as on:
        session = await on.service.manager.open("s")
        await (await session.send(LARGE)).outcome()
        for number in range(30):
            on.say(w.Outcome(id=number, session="s", turn=1))
        await until(lambda: not on.connection.outbox.has_room)
        on.connection.close()
        await until(lambda: on.connection.open_requests == 0)
        assert on.connection.outbox.bytes == 0


async def test_it_wakes_its_transport_and_says_when_it_is_over() -> None:
    async with bare() as on:
        before = on.woken
        on.say(w.Ping())
        assert on.woken == before + 1
        await on.hear_a(w.Pong)
        assert not on.connection.is_closed
        on.say(w.Goodbye())
        assert not on.connection.is_closed
        await on.hear_a(w.Goodbye)
        assert on.connection.is_closed
        on.say(w.Ping())
        assert on.connection.take() is None


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"hello","versions":[%b]}' % b",".join([b"9"] * 20_000),
        b'{"type":"%b"}' % (b"x" * 60_000),
        b'{"type":"hello","versions":[2],"%b":1}' % (b"x" * 60_000),
    ],
    ids=["versions", "type", "field"],
)
async def test_a_wrong_frame_is_not_sent_back_at_full_length(frame: bytes) -> None:
    async with bare() as on:
        stranger = Bare(on.service)
        stranger.connection.receive(frame)
        error = await stranger.hear_a(w.Error)
        assert len(error.message) < 1000
        stranger.connection.close()  # the service would wait for it


async def test_a_bug_of_ours_is_answered_without_a_word_of_it() -> None:
    async with bare() as on:

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a secret")

        on.service.manager.list = broken  # type: ignore[assignment]  # a bug, for this test
        on.say(w.ListSessions(id=1))
        error = await on.hear_a(w.Error)
        assert error.code == "SessionError"
        assert "secret" not in error.message
        on.say(w.Status(id=2, session="s"))
        await on.hear_a(w.Reply)


async def test_a_reader_whose_log_cannot_be_read_is_told_and_the_others_are_not() -> None:
    async with bare() as on:
        session = await on.service.manager.open("s")
        for number in range(100):
            await session.label({"n": f"{number}"})
        store = on.service.manager.store
        read = store.read

        async def failing(name: str, *, after: int = 0, limit: int | None = None) -> object:
            if after >= 60:
                raise StoreError("the disk is gone", committed=False)
            return await read(name, after=after, limit=limit)

        store.read = failing  # type: ignore[method-assign,assignment]  # a fault, for this test
        on.say(w.Subscribe(id=5, session="s", after=0))
        on.say(w.Subscribe(id=6, session="s", after=101))
        seqs = []
        while not isinstance(message := await on.hear(), w.Error):
            seqs += [message.seq] if isinstance(message, w.Event) else []
        assert (message.id, message.code) == (5, "StoreError")
        assert seqs == list(range(1, len(seqs) + 1))
        await session.label({"n": "last"})
        event = await on.hear_a(w.Event)
        assert (event.subscription, event.seq) == (6, 102)


async def test_a_record_that_is_in_the_log_and_not_published_yet_is_told_once() -> None:
    async with bare() as on:
        session = await on.service.manager.open("s")
        store = on.service.manager.store
        append, held = store.append, list[Callable[[], None]]()

        def acknowledged_late(batch: Batch, done: Callable[[AppendResult], None]) -> None:
            append(batch, lambda result: held.append(lambda: done(result)))

        store.append = acknowledged_late  # type: ignore[method-assign]  # a slow store
        labelling = asyncio.ensure_future(session.label({"a": "b"}))
        await until(lambda: bool(held))
        on.say(w.Subscribe(id=5, session="s", after=0))
        await on.hear_a(w.Reply)
        await on.hear_a(w.Event)
        await asyncio.sleep(0.01)
        held.pop()()
        await labelling
        on.say(w.Status(id=6, session="s"))
        told = [await on.hear(), await on.hear()]
        assert [each.seq if isinstance(each, w.Event) else each for each in told[:1]] == [2]
        assert isinstance(told[1], w.Reply)


async def test_a_subscription_id_is_used_once_at_a_time() -> None:
    async with bare() as on:
        on.say(w.Subscribe(id=5, session="s"))
        await on.hear_a(w.Reply)
        on.say(w.Subscribe(id=5, session="s"))
        error = await on.hear_a(w.Error)
        assert error.code == "InvalidInput"
        on.say(w.Unsubscribe(id=6, subscription=5))
        await on.hear_a(w.Reply)
        on.say(w.Subscribe(id=5, session="s", after=0))
        await on.hear_a(w.Reply)
        await on.hear_a(w.Event)


@pytest.mark.parametrize("limit", [-1, 0, 1001])
async def test_a_page_that_no_service_sends_is_refused_and_not_cut_to_one(limit: int) -> None:
    async with bare() as on:
        for command in (
            w.ListSessions(id=5, limit=limit),
            w.SearchSessions(id=5, query="x", limit=limit),
            w.Conversation(id=5, session="s", limit=limit),
        ):
            on.say(command)
            error = await on.hear_a(w.Error)
            assert (error.code, f"{limit}" in error.message) == ("InvalidInput", True)


async def test_an_offset_counts_what_was_lost() -> None:
    whole = "0123456789" * 100
    limits = Limits(outgoing_bytes=400)
    async with bare([say(whole).slow(0.001, delta_chars=10).hanging(at=90)], limits=limits) as on:
        on.say(w.Subscribe(id=5, session="s"))
        await on.hear_a(w.Reply)
        session = await on.service.manager.open("s")
        await session.send("hi")
        texts: list[tuple[int, str]] = []
        for lost in (5, 10):
            await until(lambda lost=lost: on.connection.outbox.previews_lost > lost)  # type: ignore[misc]  # a default
            while (frame := on.connection.take()) is not None:
                message = decode_from_server(frame)
                if isinstance(message, w.Event) and not message.seq:
                    texts.append((message.offset, msgspec.json.decode(message.body)["text"]))
        for offset, text in texts:
            assert whole[offset:].startswith(text)
        assert texts[-1][0] > sum(len(text) for _, text in texts[:-1])
        await session.interrupt()


async def test_an_unsubscribe_ends_a_subscription_that_waits_for_its_session() -> None:
    async with bare(["ok"]) as on:
        await runtime_of(on.service.manager).evict_idle()
        on.say(w.Subscribe(id=1, session="s", after=0))
        on.say(w.Unsubscribe(id=2, subscription=1))
        answers = [await on.hear_a(w.Reply), await on.hear_a(w.Reply)]
        assert sorted(reply.id for reply in answers) == [1, 2]
        assert on.connection.subscriptions == 0
        await (await (await on.service.manager.open("s")).send("hi")).outcome()
        assert on.connection.take() is None
        on.say(w.Subscribe(id=1, session="s", after=0))
        await on.hear_a(w.Reply)
        assert (await on.hear_a(w.Event)).subscription == 1


async def test_an_unsubscribe_does_not_end_the_next_subscription_with_its_id() -> None:
    async with bare() as on:
        await runtime_of(on.service.manager).evict_idle()
        on.say(w.Subscribe(id=1, session="s", after=0))
        on.say(w.Subscribe(id=1, session="s", after=0))
        assert (await on.hear_a(w.Error)).code == "InvalidInput"
        on.say(w.Unsubscribe(id=2, subscription=1))
        on.say(w.Subscribe(id=1, session="s", after=0))
        assert [(await on.hear_a(w.Reply)).id for _ in range(3)] == [2, 1, 1]
        assert (await on.hear_a(w.Event)).subscription == 1
        assert on.connection.subscriptions == 1


class Interleaving:
    """A provider that streams two tool calls at once, and stops in the middle until ``go_on``."""

    name = "interleaving"

    def __init__(self) -> None:
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()

    def profile(self, model: str) -> Profile:
        return Profile(name=self.name)

    async def stream(self, request: Request, tag: StepTag) -> AsyncGenerator[StreamEvent, None]:
        yield ReplyStarted("m", Usage())
        opened = b'{"type":"tool_use","id":"c%d","name":"ls","input":{}}'
        for index in range(2):
            yield BlockStarted(index, msgspec.Raw(opened % index))
        for part in ('{"path":', '"/tmp/', '%d"', "}"):
            for index in range(2):
                if "%" in part and index == 1:
                    self.stopped.set()
                    await self.go_on.wait()
                yield BlockDelta(index, "input", part % index if "%" in part else part)
                await asyncio.sleep(0)
        for index in range(2):
            yield BlockStopped(index)
        yield ReplyEnded("tool_use", Usage())


def _take_inputs(on: Bare) -> list[tuple[int, int, str]]:
    """(index, offset, text) of the previews that wait."""
    inputs = []
    while (frame := on.connection.take()) is not None:
        message = decode_from_server(frame)
        if isinstance(message, w.Event) and message.kind == "preview.tool_input":
            body = msgspec.json.decode(message.body)
            inputs.append((body["index"], message.offset, body["text"]))
    return inputs


@pytest.mark.parametrize("joins_late", [False, True])
async def test_an_offset_counts_the_characters_of_its_own_block_also_when_blocks_interleave(
    joins_late: bool,
) -> None:
    provider = Interleaving()
    async with bare(provider=provider) as on:
        session = await on.service.manager.open("s")
        await session.configure(tools=[{"name": "ls"}])
        if not joins_late:
            on.say(w.Subscribe(id=5, session="s"))
        await session.send("look")
        await provider.stopped.wait()
        if joins_late:
            on.say(w.Subscribe(id=5, session="s"))
        await until(lambda: on.connection.subscriptions == 1)
        inputs = _take_inputs(on)
        provider.go_on.set()
        await until(lambda: bool(session.open_calls()))
        shown = {0: "", 1: ""}
        for index, offset, text in inputs + _take_inputs(on):
            assert offset == len(shown[index])
            shown[index] += text
        assert shown == {0: '{"path":"/tmp/0"}', 1: '{"path":"/tmp/1"}'}
        await session.interrupt()


class CountedReads(MemoryStore):
    """A store that takes its time, and counts the bytes of what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        await asyncio.sleep(0.005)
        found = await super().read(session, after=after, limit=limit)
        self.read_bytes += sum(len(record.body) for record in found)
        return found


async def test_subscriptions_of_who_does_not_read_hold_few_pages_of_the_log() -> None:
    store, size = CountedReads(), 50_000
    async with bare(lambda request, tag: "x" * size, store=store) as on:
        session = await on.service.manager.open("s")
        for _ in range(12):
            await (await session.send("hi")).text()
        log_bytes = sum(len(record.body) for record in await store.read("s"))
        store.read_bytes = 0
        for number in range(30):
            on.say(w.Subscribe(id=number, session="s", after=0))
        before = -1
        while before != store.read_bytes:  # until nothing goes on any more
            before = store.read_bytes
            await asyncio.sleep(0.1)
        assert 0 < store.read_bytes < 3 * log_bytes  # of 30 times that
        # Who reads gets it all, each in order.
        seen: dict[int, list[int]] = {number: [] for number in range(30)}
        while any(len(each) < session.status().seq for each in seen.values()):
            message = await on.hear()
            if isinstance(message, w.Event):
                seen[message.subscription].append(message.seq)
        assert all(each == sorted(set(each)) for each in seen.values())


@pytest.mark.parametrize(("stalled_s", "hint_s"), [(1.5, 1.5), (8.0, 2.0), (16.0, 2.0)])
async def test_a_stall_is_followed_by_hints_of_the_measured_lag_and_at_most_two_seconds(
    stalled_s: float, hint_s: float
) -> None:
    async with bare() as on:
        on.service.admission.lag.lag_s = stalled_s
        on.say(w.Send(id=1, session="s", content=msgspec.Raw(b'"hi"')))
        error = await on.hear_a(w.Error)
        assert (error.code, error.retry_after_s) == ("Overloaded", hint_s)


async def test_subscriptions_to_one_session_are_limited_for_a_connection_and_for_all() -> None:
    limits = Limits(own_subscriptions_per_session=3, subscriptions_per_session=5)
    async with bare(limits=limits) as on:
        await on.service.manager.create(CONFIG, session_id="t")
        other = Bare(on.service)
        other.say(w.Hello(versions=(2,)))
        await other.hear_a(w.Welcome)

        async def open_to(who: Bare, session: str, id: int) -> str:
            who.say(w.Subscribe(id=id, session=session))
            answer = await who.hear()
            return answer.code if isinstance(answer, w.Error) else "open"

        assert [await open_to(on, "s", id) for id in range(4)] == ["open"] * 3 + ["Overloaded"]
        assert await open_to(on, "t", 10) == "open"
        assert [await open_to(other, "s", id) for id in range(3)] == ["open"] * 2 + ["Overloaded"]
        on.say(w.Unsubscribe(id=20, subscription=0))
        await on.hear_a(w.Reply)
        assert await open_to(other, "s", 5) == "open"
        other.connection.close()


async def test_a_subscription_of_a_session_that_moves_says_so_and_where_to_go_on() -> None:
    async with bare(["hello"]) as on:
        on.say(w.Subscribe(id=1, session="s"))
        begun = await on.hear_a(w.Reply)
        cursor = msgspec.json.decode(begun.body, type=w.Subscribed).cursor
        manager = on.service.manager
        turn = await (await manager.open("s")).send("hi")
        await turn.outcome()
        await manager.hand_over("s")
        seqs = []
        while not isinstance(message := await on.hear(), w.Ended):
            assert isinstance(message, w.Event)
            seqs += [message.seq] if message.seq else []
        assert seqs == list(range(cursor + 1, seqs[-1] + 1))
        assert message == w.Ended(subscription=1, moved=True, cursor=seqs[-1])


async def test_a_subscription_of_a_session_that_is_closed_does_not_say_that_it_moved() -> None:
    async with bare() as on:
        on.say(w.Subscribe(id=1, session="s"))
        await on.hear_a(w.Reply)
        await (await on.service.manager.open("s")).close()
        assert await on.hear_a(w.Ended) == w.Ended(subscription=1)


async def test_lists_that_nobody_reads_are_made_a_few_at_a_time() -> None:
    async with bare(limits=Limits(outgoing_bytes=300_000)) as on:
        labels = {f"name {number}": "y" * 250 for number in range(60)}
        for number in range(5):
            await on.service.manager.create(CONFIG, session_id=f"t{number}", labels=labels)
        many, connection = 60, on.connection
        for number in range(many):
            on.say(w.ListSessions(id=number))
            on.say(w.Row(id=many + number, session="t1"))
        for _ in range(2000):
            await asyncio.sleep(0)
        size = len(connection.take() or b"")
        assert size > 50_000
        assert connection.outbox.bytes < 75_000 + 8 * size
        ids = [(await on.hear_a(w.Reply)).id for _ in range(2 * many - 1)]
        assert len(set(ids)) == 2 * many - 1
        assert on.service.statistics().open_requests == 0


class Listing(MemoryStore):
    """Counts how often its rows are read."""

    reads = 0

    async def rows(self, **query: Any) -> Sequence[SessionRow]:
        self.reads += 1
        return await super().rows(**query)


async def test_lists_that_wait_for_a_client_that_leaves_are_not_made() -> None:
    counted, store = Counted(), Listing()
    async with bare(limits=Limits(outgoing_bytes=4), observer=counted, store=store) as on:
        before = store.reads
        for number in range(50):
            on.say(w.ListSessions(id=number))
        await until(lambda: bool(len(on.connection.outbox)))
        on.connection.close()
        await until(lambda: len(counted.answers) == 50)
        assert 0 < store.reads - before <= 4


async def test_a_subscription_that_ended_by_itself_leaves_nothing_in_the_outbox() -> None:
    async with bare(lambda *_: "fine") as on:
        turn = await (await on.service.manager.open("s")).send("hi")
        await turn.outcome()
        for number in range(20):
            on.say(w.Subscribe(id=number, session="s", turn=1))
            while not isinstance(await on.hear(), w.Ended):
                pass
        assert not on.connection.subscriptions
        assert not on.connection.outbox._places
