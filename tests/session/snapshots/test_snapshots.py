"""Live sessions write snapshots beside their turns, and are opened from them: to the same state as
from the whole log, whatever the snapshot is like.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from benchmarks.growth import PRICES, WORDS, Instant, opened
from llmsession import HistoryLimits, Price, SessionManager
from llmsession.errors import RecordDamaged, StoreError, UnknownToolCall
from llmsession.session.actor.snapshot_writer import MIN_RECORDS, SHARE, snapshots_every
from llmsession.session.handles.session import LLMSession, live_state
from llmsession.session.log import read_state as read_state_module
from llmsession.session.log.joined import StoredTurns
from llmsession.session.log.read_state import read_state
from llmsession.session.manager import runtime_of
from llmsession.session.snapshots import format as snapshot_format
from llmsession.session.snapshots import stored_log
from llmsession.session.snapshots.format import VERSION
from llmsession.session.snapshots.reading import read_from_snapshot
from llmsession.store.checked import checked_store
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import Lease, Store, StoredRecord
from llmsession.transport.hosting.metrics import Metrics
from llmsession.turns import records as r
from llmsession.turns.spending.prices import PriceTable
from llmsession.turns.usage import Usage
from tests.session.actors import Stage, same_as_its_log, settled, stage
from tests.session.probes import differences, run_virtually
from tests.session.random_lives import Life
from tests.virtual_time import BACKENDS

EVERY = 4


class Snapshots(MemoryStore):
    """A store whose snapshots the test can see, change, and hold up."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[tuple[str, int, bytes]] = []
        self.change: Callable[[bytes], bytes] = bytes
        self.gate: anyio.Event | None = None
        self.error: Exception | None = None
        self.read_gate: anyio.Event | None = None
        """Holds up the next page on its way."""

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        page = await super().read(session, after=after, limit=limit)
        gate, self.read_gate = self.read_gate, None
        if gate is not None:
            await gate.wait()
        return page

    async def save_snapshot(self, lease: Lease, seq: int, body: bytes) -> None:
        self.saved.append((lease.session, seq, body))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        await super().save_snapshot(lease, seq, body)

    async def snapshot(self, session: str) -> bytes | None:
        body = await super().snapshot(session)
        return None if body is None else self.change(body)


class Logged:
    """A logger that keeps what is logged at level warning."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, Any]]] = []

    def bind(self, **_: Any) -> Logged:
        return self

    def warning(self, name: str, **fields: Any) -> None:
        self.warnings.append((name, fields))

    def info(self, *_: Any, **__: Any) -> None: ...


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    with snapshots_every(EVERY):
        yield


@contextmanager
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The seqs of the records that are decoded in order to fold them."""
    seqs: list[int] = []

    def decode(raw: bytes) -> r.Record:
        record = r.decode_record(raw)
        seqs.append(record.seq)
        return record

    class Records:
        decode_record = staticmethod(decode)

        def __getattr__(self, name: str) -> Any:
            return getattr(r, name)

    with monkeypatch.context() as patch:
        patch.setattr(read_state_module, "r", Records())
        patch.setattr(stored_log, "decode_record", decode)
        yield seqs


@asynccontextmanager
async def lived(store: Store, turns: int = 6) -> AsyncIterator[Stage]:
    """A session with some turns, which is still live."""
    async with stage([f"answer {turn}" for turn in range(turns)], store=store) as on:
        await on.say(*(f"question {turn}" for turn in range(turns)))
        yield on


async def log_bodies(store: Store) -> list[bytes]:
    return [stored.body for stored in await store.read("s")]


async def same_as_the_log(store: Store, session: str) -> str:
    """The reason why the snapshot of *session* was not used; "" if it was. Either way the state is
    that of the whole log.
    """
    reasons: list[str] = []
    found = await read_from_snapshot(checked_store(store), session, reasons.append)
    whole = await read_state(store, session)
    assert differences(found, whole) == []
    assert (found.checksum, found.last_calls) == (whole.checksum, whole.last_calls)
    return "".join(reasons)


@pytest.mark.timeout(120)
def test_wherever_a_life_comes_to_rest_its_snapshot_leads_to_the_fold_of_its_log() -> None:
    seen = Counter[str]()

    async def quiet(life: Life) -> None:
        for row in await life.store.rows():
            has_one = await life.store.snapshot(row.session) is not None
            seen["snapshots" if has_one else "none"] += 1
            # Forgetting removes a snapshot, and none that is too old comes back.
            assert await same_as_the_log(life.store, row.session) == ""

    for seed in range(400, 405):
        seen += run_virtually(BACKENDS[seed % 2], Life(seed, turns=4, quiet=quiet))
    for state in ("snapshots", "compacted", "rewound", "forked", "forgotten"):
        assert seen[state] >= 2, state


async def test_a_session_that_is_opened_decodes_no_record_before_its_snapshot_until_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Snapshots()
    async with lived(store):
        pass
    [*_, (_, seq, _)] = store.saved
    head = (await store.row("s")).head
    with decoded(monkeypatch) as seqs:
        async with stage(["more"], store=store, reopen=True) as on:
            assert seqs == list(range(seq + 1, head + 1))
            assert len(on.session.conversation()) == 12
            # ``session.created`` has no message, and of an open turn none is in the history.
            assert set(range(1, seq + 1)) - set(seqs) <= {1, seq}
            assert await on.say("and now") == "more"
            await same_as_its_log(on, on.session)


async def test_a_turn_behind_a_compaction_decodes_only_what_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, provider = Snapshots(), Instant()
    async with SessionManager(provider=provider, store=store) as manager:
        session = await opened(manager, store, 200)
        await (await session.send(WORDS)).outcome()
        name = session.id
    [*_, (_, seq, _)] = store.saved
    async with SessionManager(provider=provider, store=store) as manager:
        with decoded(monkeypatch) as seqs:
            session = await manager.open(name, unbound="caller")
            await (await session.send(WORDS)).outcome()
            session.usage()
            session.status()
            before = [each for each in seqs if each <= seq]
            assert 0 < len(before) < seq / 5
        assert len(session.conversation()) > 400


@pytest.mark.parametrize("change", ["rewind", "forget", "clear", "purge", "fork"])
async def test_a_session_that_was_opened_from_a_snapshot_is_changed_as_any_other(
    change: str,
) -> None:
    store = Snapshots()
    async with lived(store):
        pass
    async with stage(["more", "and more"], store=store, reopen=True) as on:
        session: LLMSession = on.session
        match change:
            case "rewind":
                await session.rewind(2)
            case "forget":
                await session.forget(4)
            case "clear" | "purge":
                await session.clear(purge=change == "purge")
            case "fork":
                session = on.session = await session.fork(3)
        left = {"rewind": [1, 2], "forget": [4, 5, 6], "fork": [1, 2, 3]}.get(change, [])
        state = live_state(session)
        assert list(dict.fromkeys(each.turn for each in session.conversation())) == left
        assert (state.turn_count, state.head_turn) == (len(left), left[-1] if left else None)
        await same_as_its_log(on, session)
        assert await on.say("and now") == "more"
        await same_as_its_log(on, session)
    assert await same_as_the_log(store, session.id) == ""


async def test_behind_a_snapshot_a_summary_of_no_call_is_refused_as_anywhere() -> None:
    store = Snapshots()
    async with lived(store):
        pass
    async with stage(["more"], store=store, reopen=True) as on:
        with pytest.raises(UnknownToolCall):
            await on.session.store_compact_summaries({"none": "a text"})
        assert await on.say("and now") == "more"


@pytest.mark.real_time
async def test_what_is_left_of_a_long_session_that_forgets_is_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, provider = Snapshots(), Instant()
    async with SessionManager(provider=provider, store=store) as manager:
        name = (await opened(manager, store, 500)).id
    threads: set[int] = set()
    tables: set[str] = set()
    unpack = snapshot_format._unpack

    def decoding(raw: bytes) -> r.Record:
        threads.add(threading.get_ident())
        return r.decode_record(raw)

    def unpacking(name: str, packed: bytes) -> dict[Any, Any]:
        threads.add(threading.get_ident())
        tables.add(name)
        return unpack(name, packed)

    monkeypatch.setattr(snapshot_format, "_unpack", unpacking)
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.open(name, unbound="caller")
        left = session.conversation()[-1].turn
    async with SessionManager(provider=provider, store=store) as manager:
        session = await manager.open(name, unbound="caller")
        threads.clear()
        tables.clear()
        with monkeypatch.context() as patch:
            patch.setattr(stored_log, "decode_record", decoding)
            await session.forget(10)
        assert {"accepted_at", "accepted_time", "committed_at"} <= tables
        assert threads
        assert threading.get_ident() not in threads
        messages = session.conversation()
        assert (messages[0].turn, messages[-1].turn) == (10, left)
    assert await same_as_the_log(store, name) == ""


def kept_logs() -> int:
    """How many logs are in memory because messages may have to be decoded from them."""
    gc.collect()
    return sum(isinstance(each, StoredTurns) for each in gc.get_objects())


async def test_the_log_of_what_was_forgotten_does_not_stay_in_memory() -> None:
    store = Snapshots()
    async with lived(store):
        pass
    before = kept_logs()
    async with stage(["more"], store=store, reopen=True) as on:
        assert kept_logs() == before + 1
        await on.session.forget(4)
        assert kept_logs() == before


async def test_the_first_usage_after_an_opening_prices_no_request_before_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, provider = Snapshots(), Instant()
    async with SessionManager(provider=provider, store=store, prices=PRICES) as manager:
        name = (await opened(manager, store, 200)).id
    priced, cost = [], PriceTable.cost

    def counting(table: PriceTable, model: str | None, usage: Usage) -> int | None:
        priced.append(usage)
        return cost(table, model, usage)

    monkeypatch.setattr(PriceTable, "cost", counting)
    for prices in (PRICES, {"m": Price.usd(1, 2)}, {"n": Price.usd(1, 2)}):
        found = []
        for body in (store.snapshot, None):
            with monkeypatch.context() as patch:
                if body is None:
                    patch.setattr(store, "change", torn)
                async with SessionManager(provider=provider, store=store, prices=prices) as manager:
                    session = await manager.open(name, unbound="caller")
                    priced.clear()
                    found.append((session.usage(turns=0), session.usage(turns=5)))
                    spent = session.reference.actor.core.account.spent()
                    assert spent.cost_nano_usd == (found[-1][0].cost_nano_usd or 0)
                    few = body is not None and prices is PRICES
                    assert (len(priced) < 60) == few
        assert found[0] == found[1]


def torn(body: bytes) -> bytes:
    return body[: len(body) // 2]


def changed(body: bytes) -> bytes:
    return body[:-9] + bytes([body[-9] ^ 4]) + body[-8:]


def newer(body: bytes) -> bytes:
    return body.replace(b"snapshot %d\n" % VERSION, b"snapshot %d\n" % (VERSION + 1), 1)


def empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    ("change", "why"),
    [(torn, "damaged"), (changed, "damaged"), (empty, "damaged"), (newer, "another version")],
)
async def test_a_snapshot_that_cannot_be_used_is_named_once_and_written_anew(
    change: Callable[[bytes], bytes], why: str
) -> None:
    store, logger = Snapshots(), Logged()
    async with lived(store):
        pass
    store.change = change
    saved, metrics = len(store.saved), Metrics()
    stands = stage(["more"], store=store, reopen=True, logger=logger, observers=[metrics])
    async with stands as on:
        [(event, fields)] = logger.warnings
        assert event == "snapshot.ignored"
        assert why in fields["why"]
        assert b"llmsession_snapshots_ignored_total 1.0" in metrics.page()[2]
        await settled()
        assert len(store.saved) == saved + 1
        await on.say("and now")
        await same_as_its_log(on, on.session)
    store.change = bytes
    assert await same_as_the_log(store, "s") == ""


async def test_a_snapshot_of_another_log_or_of_a_longer_one_is_not_used() -> None:
    store, other = Snapshots(), Snapshots()
    async with lived(store):
        pass
    async with stage(["one"] * 9, store=other) as on:
        await on.say(*["something else"] * 9)
    for at, why in ((0, "not those that it covers"), (-1, "more records than the log has")):
        _, _, theirs = other.saved[at]
        store.change = partial(_instead, theirs)
        assert why in await same_as_the_log(store, "s")


def _instead(theirs: bytes, _: bytes) -> bytes:
    return theirs


async def test_a_store_that_cannot_read_a_snapshot_opens_the_session_by_its_log() -> None:
    store, logger = Snapshots(), Logged()
    async with lived(store):
        pass

    def fail(_: bytes) -> bytes:
        raise OSError("the disk has a hole here")

    store.change = fail
    async with stage(["more"], store=store, reopen=True, logger=logger) as on:
        assert "a hole" in logger.warnings[0][1]["why"]
        assert len(on.session.conversation()) == 12


@pytest.mark.parametrize("seq", [1, 3, 6])
async def test_a_damaged_record_before_the_snapshot_is_named_when_the_session_is_opened(
    seq: int,
) -> None:
    class Damaged(Snapshots):
        async def read(
            self, session: str, *, after: int = 0, limit: int | None = None
        ) -> Sequence[StoredRecord]:
            records = await super().read(session, after=after, limit=limit)
            return [
                StoredRecord(each.seq, each.epoch, b"no record" if each.seq == seq else each.body)
                for each in records
            ]

    store, damaged = Snapshots(), Damaged()
    async with lived(store):
        pass
    vars(damaged).update(vars(store))
    async with SessionManager(provider=Instant(), store=damaged) as manager:
        with pytest.raises(RecordDamaged, match=f"record {seq} of session 's'"):
            await manager.open("s")


async def test_without_a_snapshot_a_session_is_opened_and_gets_one() -> None:
    store = Snapshots()
    async with lived(store):
        pass
    vars(store)["_logs"]["s"].snapshot = None
    saved = len(store.saved)
    async with stage(store=store, reopen=True):
        await settled()
        assert len(store.saved) == saved + 1
        assert await same_as_the_log(store, "s") == ""


async def test_a_store_without_snapshots_is_asked_for_none() -> None:
    class Plain:
        """Only what a ``Store`` must have."""

        def __init__(self, inner: MemoryStore) -> None:
            for name in vars(Store):
                if not name.startswith("_") and callable(getattr(Store, name)):
                    setattr(self, name, getattr(inner, name))

    inner = Snapshots()
    plain: Any = Plain(inner)
    assert not checked_store(plain).keeps_snapshots
    async with stage(["one", "two"], store=plain) as on:
        await on.say("first", "second")
        await on.session.close()
        on.session = await on.manager.open("s")
        assert len(on.session.conversation()) == 4
    assert inner.saved == []


async def test_turns_interrupts_and_closing_do_not_wait_for_a_snapshot() -> None:
    store = Snapshots()
    store.gate = anyio.Event()
    async with lived(store) as on:
        assert len(store.saved) == 1  # and no second one before the first is there
        await on.interrupted("more")
        with anyio.fail_after(1):
            await on.session.close()
        store.gate.set()


async def test_a_snapshot_that_cannot_be_saved_is_tried_again_only_when_more_has_come() -> None:
    store, logger = Snapshots(), Logged()
    store.error = StoreError("the disk is full", committed=False)
    async with stage(["one"] * 8, store=store, logger=logger) as on:
        await on.say(*["question"] * 8)
        seqs = [seq for _, seq, _ in store.saved]
        assert len(seqs) >= 2
        assert all(later - seq >= EVERY for seq, later in pairwise(seqs))
        assert [name for name, _ in logger.warnings] == ["snapshot.not_saved"] * len(seqs)


@pytest.mark.parametrize("purges", [True, False])
async def test_a_snapshot_on_its_way_brings_nothing_back_that_is_forgotten_meanwhile(
    purges: bool,
) -> None:
    store = Snapshots()
    async with stage(["one", "two"], store=store) as on:
        store.gate = anyio.Event()
        # The answer to an interrupt is kept with what was said: that is in a snapshot, too.
        await on.say("first")
        turn = await on.session.send("a secret question", when_busy="queue")
        await on.session.interrupt(command_id="stop")
        await turn.outcome()
        await on.session.label({"x": "1"})
        await settled()
        await (on.session.clear(purge=True) if purges else on.session.forget(1e12))
        old = [seq for _, seq, _ in store.saved]
        assert old
        store.gate.set()
        await settled()
        assert await store.snapshot("s") is None
        for number in range(EVERY):
            await on.session.label({"x": f"more {number}"})
        await settled()
        [(_, seq, body)] = store.saved[len(old) :]
        assert seq > max(old)
        assert await store.snapshot("s") == body
        assert await same_as_the_log(store, "s") == ""


@pytest.mark.parametrize("labels", [0, 1, 3])
async def test_a_session_that_forgets_after_each_turn_has_a_snapshot_of_what_is_left(
    monkeypatch: pytest.MonkeyPatch, labels: int
) -> None:
    store = Snapshots()
    limits = HistoryLimits(max_messages=4)
    async with stage([f"answer {turn}" for turn in range(9)], store=store, retention=limits) as on:
        for turn in range(9):
            await on.say(f"question {turn}")
            async with anyio.create_task_group() as group:  # while the log is being rewritten
                for label in range(labels):
                    group.start_soon(on.session.label, {"x": f"{turn} {label}"})
            await settled()
            assert await same_as_the_log(store, "s") == ""
        assert len(on.session.conversation()) == 4
        await same_as_its_log(on, on.session)
    assert await store.snapshot("s") is not None
    [*_, (_, seq, _)] = store.saved
    with decoded(monkeypatch) as seqs:
        async with stage(store=store, reopen=True, retention=limits) as on:
            assert min(seqs, default=seq + 1) > seq
            assert len(on.session.conversation()) == 4
            await same_as_its_log(on, on.session)


@pytest.mark.parametrize("closes", [True, False])
async def test_a_session_that_forgets_after_each_turn_writes_its_snapshot_only_at_its_end(
    closes: bool,
) -> None:
    store, limits = Snapshots(), HistoryLimits(max_messages=4)
    async with stage([f"answer {turn}" for turn in range(9)], store=store, retention=limits) as on:
        for turn in range(9):
            await on.say(f"question {turn}")
            await settled()
            assert len(store.saved) <= 2  # before anything was forgotten
        assert await store.snapshot("s") is None
        if closes:
            await on.session.close()
            await settled()
            assert await store.snapshot("s") is not None
    assert await store.snapshot("s") is not None
    assert await same_as_the_log(store, "s") == ""
    bodies = await log_bodies(store)
    assert store.saved[-1][1] == len(bodies)


async def test_the_checksum_of_a_log_that_is_rewritten_while_it_is_summed_up_is_not_kept() -> None:
    store, limits = Snapshots(), HistoryLimits(max_messages=2)
    async with stage(["one", "two", "three"], store=store, retention=limits) as on:
        await on.say("first", "second")
        await settled()
        actor = runtime_of(on.manager).find_live("s")
        assert actor is not None
        assert actor.state.checksum is None
        store.read_gate = gate = anyio.Event()
        actor.snapshots.write_if_removed()
        await settled()
        await on.say("third")  # and the second turn is forgotten
        await settled()
        saved = len(store.saved)
        gate.set()
        await settled()
        assert len(store.saved) == saved
        assert actor.state.checksum is None
    assert await same_as_the_log(store, "s") == ""
    assert await store.snapshot("s") is not None


@pytest.mark.parametrize("turns", [10, 1_500])
async def test_a_snapshot_is_due_when_an_eighth_of_a_long_log_is_not_covered(turns: int) -> None:
    store, provider = Snapshots(), Instant()
    with snapshots_every(None):
        async with SessionManager(provider=provider, store=store) as manager:
            session = await opened(manager, store, turns)
            while len(store.saved) < 2:
                await (await session.send(WORDS)).outcome()
                await settled()
    (_, first, _), (_, second, _) = store.saved
    assert first >= MIN_RECORDS
    assert 0 <= second - first - max(MIN_RECORDS, second // SHARE) < 10


@pytest.mark.parametrize("turn", [None, 6, 3])
async def test_a_fork_is_opened_from_its_parents_snapshot_if_that_covers_no_more_than_it_has(
    monkeypatch: pytest.MonkeyPatch, turn: int | None
) -> None:
    store = Snapshots()
    async with lived(store):
        pass
    [*_, (_, seq, _)] = store.saved
    logger = Logged()
    async with stage(["more", "other"], store=store, reopen=True, logger=logger) as on:
        whole = on.session.conversation()
        with decoded(monkeypatch) as seqs:
            fork = on.session = await on.session.fork(turn)
            assert (1 in seqs) == (turn == 3)
            assert seq + 1 in seqs or turn == 3
        left = [message for message in whole if turn is None or message.turn <= turn]
        assert [message.text for message in fork.conversation()] == [each.text for each in left]
        await same_as_its_log(on, fork)
        assert await on.say("and now") in ("more", "other")
        await same_as_its_log(on, fork)
    assert await same_as_the_log(store, fork.id) == ""
    assert logger.warnings == []
