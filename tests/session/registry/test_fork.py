"""A fork goes on from a turn of another session: what comes with it, and what does not."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from llmsession import (
    CompactionConfig,
    InvalidInput,
    KeyReused,
    LLMSession,
    MemoryStore,
    SessionBusy,
    SessionConfig,
    SessionExists,
    SessionNotFound,
    StoreError,
    Tool,
    Usage,
)
from llmsession.session.handles.session import live_state
from llmsession.session.manager import runtime_of
from llmsession.store.protocol import Lease, Owner, StoredRecord, this_process
from llmsession.testing.faulty_store import FaultyStore
from llmsession.testing.scripted import call, never, say, think
from llmsession.turns import records as r
from tests.session.actors import (
    Quick,
    Stage,
    Waiting,
    at_once,
    in_tool,
    same_as_its_log,
    settled,
    stage,
)  # fmt: skip
from tests.session.probes import log_of


def texts(session: LLMSession) -> list[str]:
    return [message.text for message in session.conversation()]


@asynccontextmanager
async def after_one(*script: Any, **options: Any) -> AsyncIterator[Stage]:
    """A stage whose session has had the turn "first", answered with "one"."""
    async with stage(["one", *script], **options) as on:
        await on.say("first")
        yield on


async def test_a_fork_goes_on_from_the_head_and_neither_changes_the_other() -> None:
    async with stage(["one", "two", "in the fork", "in the parent"]) as on:
        await on.say("first", "second")
        fork = await on.session.fork()
        assert fork.conversation() == on.session.conversation()
        assert await (await fork.send("third")).text() == "in the fork"
        assert await on.say("another third") == "in the parent"
        assert texts(fork) == ["first", "one", "second", "two", "third", "in the fork"]
        assert texts(on.session)[4:] == ["another third", "in the parent"]
        await same_as_its_log(on, fork)


async def test_a_fork_copies_no_message() -> None:
    async with stage(["one", "two"]) as on:
        await on.say("first", "second")
        fork = await on.session.fork()
        pairs = zip(fork.conversation(), on.session.conversation(), strict=True)
        assert all(mine is theirs for mine, theirs in pairs)
        ours = await on.store.read(fork.id)
        theirs = await on.store.read("s")
        assert all(a.body is b.body for a, b in zip(ours, theirs, strict=False))
        assert {message.session for message in fork.conversation()} == {"s"}


async def test_a_fork_at_a_turn_has_what_was_there_when_it_was_committed() -> None:
    async with stage(["one", "two", "three", "again"]) as on:
        await on.say("first", "second", "third")
        fork = await on.session.fork(at="a2")
        assert texts(fork) == ["first", "one", "second", "two"]
        assert fork.status().head is not None
        assert str(fork.status().head) == "a2"
        # The number 3 is the parent's; what the fork does not know it may use itself.
        turn = await fork.send("third again")
        assert turn.id.number == 3
        assert await turn.text() == "again"
        await same_as_its_log(on, fork)


async def test_a_fork_may_begin_at_a_turn_that_was_rewound() -> None:
    async with stage(["one", "two", "three"]) as on:
        await on.say("first", "second", "third")
        await on.session.rewind(1)
        fork = await on.session.fork(at=3)
        assert texts(fork) == ["first", "one", "second", "two", "third", "three"]
        await on.session.clear()
        assert len((await on.session.fork(at=2)).conversation()) == 4


@pytest.mark.parametrize("at", [1, 9, "u2"])
async def test_a_turn_that_was_never_committed_is_no_place_to_fork_at(at: int | str) -> None:
    async with stage([never(), "two", never()]) as on:
        await on.interrupted("dropped")
        with pytest.raises(InvalidInput, match="never committed"):
            await on.session.fork(at=at)
        assert await on.names() == ["s"]


async def test_a_fork_outlives_its_parent() -> None:
    async with after_one("two", "more") as on:
        fork = await on.session.fork()
        name = fork.id
        await on.manager.delete("s")
        assert await (await fork.send("go on")).text() == "two"
        await fork.close()
        opened = await on.manager.open(name)
        assert texts(opened) == ["first", "one", "go on", "two"]
        del on.session


async def test_a_fork_of_a_fork_reads_on_through_both() -> None:
    async with after_one("two", "three", "four") as on:
        child = await on.session.fork(session_id="child")
        await (await child.send("second")).text()
        grandchild = await child.fork(session_id="grandchild")
        await (await grandchild.send("third")).text()
        assert [m.session for m in grandchild.conversation()] == [
            "s", "s", "child", "child", "grandchild", "grandchild",
        ]  # fmt: skip
        # At a turn from before its own fork it begins with the oldest one's records alone.
        early = await grandchild.fork(at=1)
        assert texts(early) == ["first", "one"]
        row = await on.store.row(early.id)
        assert row.parent == "grandchild"
        for session in (child, grandchild, early):
            await same_as_its_log(on, session)


async def test_commands_and_usage_of_a_fork_begin_anew() -> None:
    async with stage(["one", "two"]) as on:
        await on.outcome("first", command_id="k")
        fork = await on.session.fork()
        assert fork.usage().total == Usage()
        turn = await fork.send("something else", command_id="k")
        assert turn.id.number == 2
        await turn.outcome()
        assert set(fork.usage().turns) == {2}


async def test_pending_receipts_come_with_a_fork() -> None:
    tool = Tool(name="t", run=Quick())
    async with stage([call("t", id="c"), never(), "fine", "fine"], tools=[tool]) as on:
        await on.interrupted("do it")
        fork = await on.session.fork()
        await (await fork.send("what was done?")).text()
        assert "t (c): finished" in fork.conversation()[0].content[-1].text  # type: ignore[union-attr]  # the receipt
        # They are the parent's, too.
        await on.say("what was done?")
        assert len(on.session.conversation()[0].content) == 2


async def test_a_forks_callables_are_bound_as_its_parents_are() -> None:
    tool = Quick("from the tool")
    async with stage([call("t", id="c"), "done"], tool=tool) as on:
        fork = await on.session.fork()
        assert await (await fork.send("use it")).text() == "done"
        assert len(tool.inputs) == 1


async def test_a_forks_configuration_is_the_one_of_its_turn() -> None:
    async with after_one("two", "x", "y", system="old") as on:
        await on.session.configure(system="new")
        await on.say("second")
        assert (await on.session.fork(at=1)).config.system == "old"
        assert (await on.session.fork(at=2)).config.system == "new"


async def test_thinking_is_sent_on_from_a_fork_as_it_was_made() -> None:
    async with stage([think("hmm") + say("one"), "two", "three"]) as on:
        await on.say("first")
        fork = await on.session.fork()
        await (await fork.send("second")).text()
        assert b"hmm" in on.provider.requests[-1].encode()


async def test_summaries_and_the_view_come_with_a_fork() -> None:
    long = "a line of output\n" * 500
    script = [reply for n in range(3) for reply in (call("t", id=f"c{n}"), f"done {n}")]
    tool = Tool(name="t", run=Quick(long))
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    async with stage(script, tools=[tool], compaction=compaction) as on:
        await on.say("one", "two")
        before = await on.session.fork()
        assert (await on.session.compact()).applied
        after = await on.session.fork()
        assert before.status().compacted_before == 0
        assert after.status().compacted_before == on.session.status().compacted_before > 0
        assert after.context().encode() == on.session.context().encode()
        # What was not compacted there can be compacted here, from the same summaries.
        assert (await before.compact()).applied
        assert before.context().encode() == on.session.context().encode()


async def test_a_running_turn_refuses_a_fork_or_is_interrupted_first() -> None:
    async with after_one(never(), "two") as on:
        running = await on.session.send("second")
        queued = await on.session.send("third")
        with pytest.raises(SessionBusy, match="interrupt"):
            await on.session.fork()
        assert on.session.status().phase == "running"
        fork = await on.session.fork(when_busy="interrupt")
        assert (await running.outcome()).status == "aborted"
        assert (await queued.outcome()).status == "aborted"
        assert len(fork.conversation()) == 2
        with pytest.raises(InvalidInput, match="when_busy"):
            await on.session.fork(when_busy="queue")  # type: ignore[arg-type]  # no such choice


async def test_a_turn_that_waited_when_the_fork_began_is_not_the_forks() -> None:
    tool = Waiting()
    async with in_tool(tool, "one", "two", "three") as (on, first):
        queued = await on.session.send("second")
        tool.go.set()
        await first.text()
        await queued.text()
        fork = await on.session.fork(at=1)  # turn 2 stands in the shared records, accepted
        state = live_state(fork)
        assert (state.open, state.counter.last) == ({}, 2)
        with pytest.raises(InvalidInput, match="no turn 2"):
            fork.turn(2)
        assert (await fork.send("instead")).id.number == 3


async def test_labels_come_with_a_fork_unless_it_gets_its_own() -> None:
    async with stage() as on:
        await on.session.label({"user": "7"})
        assert (await on.session.fork()).labels == {"user": "7"}
        assert (await on.session.fork(labels={"user": "8"})).labels == {"user": "8"}
        assert (await on.session.fork(labels={})).labels == {}
        assert on.session.labels == {"user": "7"}


# Across the point where it forked.


async def test_events_and_outcomes_reach_across_the_point_where_it_forked() -> None:
    async with stage(["one", "two"]) as on:
        first = await on.outcome("first")
        fork = await on.session.fork(session_id="f")
        await (await fork.send("second")).outcome()
        events = fork.subscribe(after=0)
        kinds = [(await anext(events)).__struct_config__.tag for _ in range(6)]
        events.close()
        assert kinds == [
            "session.created", "turn.accepted", "turn.committed",
            "session.forked", "turn.accepted", "turn.committed",
        ]  # fmt: skip
        assert await fork.turn("u1").outcome() == first
        assert [event.seq async for event in fork.events_of(1)] == [2, 3]  # type: ignore[union-attr]  # records


# Repeats, and what goes wrong between the steps.


async def test_a_repeated_fork_is_the_same_fork() -> None:
    async with after_one() as on:
        fork = await on.session.fork(command_id="k")
        again = await on.session.fork(command_id="k")
        assert again.id == fork.id
        with pytest.raises(KeyReused):
            await on.session.fork(at=1, command_id="k")
        name = fork.id
        del fork, again
        gc.collect()
        await runtime_of(on.manager).evict_idle()
        assert (await on.session.fork(command_id="k")).id == name
        assert len(await on.manager.list()) == 2


async def test_forks_of_one_command_asked_at_once_are_one() -> None:
    async with after_one() as on:
        forks = await at_once(*[lambda: on.session.fork(command_id="k")] * 3)
        assert len(forks) == 3
        assert len({fork.id for fork in forks}) == 1


async def test_a_fork_with_an_id_that_is_taken_is_refused() -> None:
    async with stage() as on:
        await on.manager.create(SessionConfig(model="m"), session_id="other")
        for command_id in (None, "k", "k"):
            with pytest.raises(SessionExists):
                await on.session.fork(session_id="other", command_id=command_id)
        with pytest.raises(InvalidInput, match="printable"):
            await on.session.fork(session_id="")
        assert len(await on.manager.list()) == 2


async def test_a_cancelled_caller_leaves_a_whole_fork_behind() -> None:
    async with after_one() as on:
        with anyio.move_on_after(0):
            await on.session.fork(session_id="f")
        await settled()
        assert len((await on.manager.open("f")).conversation()) == 2


@pytest.mark.parametrize("written", [False, True])
async def test_a_fork_whose_first_record_failed_is_not_there_unless_it_was_written(
    written: bool,
) -> None:
    store = FaultyStore(MemoryStore())
    async with after_one(store=store) as on:
        store.lose_acknowledgement() if written else store.fail_next()
        with pytest.raises(StoreError):
            await on.session.fork(session_id="f")
        if not written:
            assert await on.names() == ["s"]
            await on.session.fork(session_id="f")
        assert len((await on.manager.open("f")).conversation()) == 2


@pytest.mark.parametrize("ended", [False, True])
async def test_a_fork_that_a_crash_left_without_its_own_first_record_is_whole_when_opened(
    ended: bool,
) -> None:
    store = MemoryStore()
    async with stage(["one", never()], store=store) as on:
        await on.session.label({"user": "7"})
        await on.say("first")
        if not ended:
            await on.begin("running")
        upto = live_state(on.session).head
        lease = await store.fork("s", upto, "f", this_process("died since"))
        await store.release(lease)
        fork = await on.manager.open("f")
        assert texts(fork) == ["first", "one"]
        assert fork.labels == {"user": "7"}
        assert fork.status().phase == "idle"
        log = await log_of(store, "f")
        forked = log[upto]
        assert isinstance(forked, r.SessionForked)
        assert (forked.session, forked.parent, forked.turn_kept) == ("f", "s", 1)
        assert len(log) == upto + 1
        await same_as_its_log(on, fork)


async def test_a_fork_of_a_session_that_is_gone_says_so() -> None:
    class Gone(MemoryStore):
        async def fork(self, parent: str, upto: int, session: str, owner: Owner) -> Lease:
            await self.delete(parent)
            return await super().fork(parent, upto, session, owner)

    async with stage(store=Gone()) as on:
        with pytest.raises(SessionNotFound):
            await on.session.fork()
        del on.session


async def test_a_fork_that_cannot_be_read_is_taken_back() -> None:
    class Unreadable(MemoryStore):
        async def read(
            self, session: str, *, after: int = 0, limit: int | None = None
        ) -> Sequence[StoredRecord]:
            if session == "f":
                raise StoreError("no", committed=False)
            return await super().read(session, after=after, limit=limit)

    async with stage(store=Unreadable()) as on:
        with pytest.raises(StoreError):
            await on.session.fork(session_id="f")
        assert await on.names() == ["s"]
