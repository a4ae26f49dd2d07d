"""Forgetting takes what was said out of the history and out of the log, for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from llmsession import (
    InvalidInput,
    LLMSession,
    MemoryStore,
    SessionManager,
    SessionMoved,
    StoreError,
    Tool,
    TurnNotOpen,
    UnknownToolCall,
)
from llmsession.errors import RecordDamaged
from llmsession.session.handles.session import live_state
from llmsession.session.manager import runtime_of
from llmsession.store.protocol import Lease, Store
from llmsession.testing.scripted import ScriptedProvider, block, call, never, say, think
from llmsession.turns import records as r
from tests.session.actors import (
    PATIENCE_S,
    Quick,
    Stage,
    faulty_stage,
    lasting,
    meanwhile,
    same_as_its_log,
    settled,
    stage,
)


async def said_in(store: Store, word: str, session: str = "s") -> list[int]:
    """The seqs of the records that say *word*, in whatever field."""
    return [each.seq for each in await store.read(session) if word.encode() in each.body]


class Doubtful(MemoryStore):
    """A store whose rewrites fail as often as they are told to, before or after the change."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[Exception] = []
        self.rewrites: list[dict[int, bytes]] = []
        self.after = False
        self.hold_back: anyio.Event | None = None

    async def rewrite(self, lease: Lease, bodies: Mapping[int, bytes]) -> None:
        if self.hold_back is not None:
            await self.hold_back.wait()
        self.rewrites.append(dict(bodies))
        if self.failures and not self.after:
            raise self.failures.pop(0)
        await super().rewrite(lease, bodies)
        if self.failures:
            raise self.failures.pop(0)


# Caller's summaries that wait.


async def test_a_summary_that_waits_is_refused_where_turns_are_forgotten_before_it() -> None:
    async with stage(["one", "two", "three", never(), "five"]) as on:
        await on.say("the marker", "second", "third")
        await on.begin("fourth")
        summary = partial(on.session.set_summary, "they said marker", upto=2)
        async with meanwhile(summary, refused=(InvalidInput,)) as refusals:
            assert refusals == []  # it waits for the end of the turn
            await on.session.forget(2, when_busy="interrupt")
        assert "forgotten before the summary" in str(refusals[0])
        assert await said_in(on.store, "marker") == []
        await on.say("go on")
        assert b"marker" not in on.provider.requests[-1].encode()


# clear(purge=True)


async def test_a_purge_takes_everything_that_was_said_out_of_the_log() -> None:
    tool = Tool(name="t", run=Quick("secret result"))
    script = [think("secret thought") + call("t", {"path": "secret"}, id="c"), "secret answer", "x"]
    async with stage(script, tools=[tool]) as on:
        await on.say("a secret question")
        assert await said_in(on.store, "secret") != []
        await on.session.clear(purge=True)
        assert await said_in(on.store, "secret") == []
        assert on.session.conversation() == ()
        assert on.session.status().generation == 2
        kinds = await on.kinds()
        assert kinds[-2:] == ["conversation.cleared", "records.redacted"]
        await same_as_its_log(on, on.session)
        assert await on.say("hello") == "x"
        assert [m.turn for m in on.session.conversation()] == [2, 2]


async def test_a_purge_keeps_numbers_costs_and_ends() -> None:
    async with stage(["one", never(), "three"]) as on:
        await on.say("first")
        await on.interrupted("dropped")
        usage = on.session.usage()
        await on.session.clear(purge=True)
        assert on.session.usage() == usage
        assert live_state(on.session).ended == {1: "committed", 2: "aborted"}
        outcome = await on.session.turn(1).outcome()
        assert (outcome.status, outcome.text) == ("committed", "")
        assert (await on.session.send("third")).id.number == 3


async def test_what_a_dropped_turn_said_and_did_is_purged_too() -> None:
    tool = Tool(name="t", run=Quick("marker result"))
    script = [call("t", {"x": "marker"}, id="c"), never(), never()]
    async with stage(script, tools=[tool]) as on:
        await on.begin("marker one")
        await on.session.send("marker steer", when_busy="steer")
        await on.session.interrupt(command_id="stop")  # its answer holds what was dropped
        await on.session.clear(purge=True)
        assert await said_in(on.store, "marker") == []
        again = await on.session.interrupt(command_id="stop")
        assert again.turns[0].user_content == ()
        assert again.turns[0].calls == ()
        await same_as_its_log(on, on.session)


async def test_a_steer_that_answers_a_step_alone_leaves_its_place_in_a_purged_log() -> None:
    async with stage([say("half").slow(0.1), "two", "three"]) as on:
        turn = await on.begin("first")
        await on.session.send("marker steer", when_busy="steer")
        await turn.outcome()
        assert len(on.session.conversation()) == 4
        await on.session.clear(purge=True)
        assert await said_in(on.store, "marker") == []
        await same_as_its_log(on, on.session)


async def test_replays_of_a_subscriber_give_the_redacted_records() -> None:
    async with stage(["marker answer"]) as on:
        await on.say("marker question")
        await on.session.clear(purge=True)
        events = on.session.subscribe(after=0)
        head = live_state(on.session).head
        replayed = [await anext(events) for _ in range(head)]
        events.close()
        assert [event.seq for event in replayed] == list(range(1, head + 1))  # type: ignore[union-attr]  # records
        assert b"marker" not in b"".join(r.encode_record(event) for event in replayed)  # type: ignore[arg-type]  # records


async def test_a_fork_keeps_what_its_parent_purged_and_purges_what_it_shares() -> None:
    async with stage(["marker answer"]) as on:
        await on.say("marker question")
        fork = await on.session.fork(session_id="f")
        other = await on.session.fork(session_id="o")
        await on.session.clear(purge=True)
        assert await said_in(on.store, "marker") == []
        assert fork.conversation()[1].text == "marker answer"
        await fork.clear(purge=True)
        assert await said_in(on.store, "marker", "f") == []
        assert await said_in(on.store, "marker", "o") != []
        for session in (fork, other):
            await same_as_its_log(on, session)


async def test_what_was_waiting_in_the_parent_is_purged_from_a_fork_too() -> None:
    async with stage([say("one").slow(0.1), "two"]) as on:
        first = await on.session.send("first")
        queued = await on.session.send("the marker")
        await first.text()
        await queued.text()
        fork = await on.session.fork(at=1, session_id="f")
        assert await said_in(on.store, "marker", "f") != []
        await fork.clear(purge=True)
        assert await said_in(on.store, "marker", "f") == []
        await same_as_its_log(on, fork)


# forget


async def test_forgetting_takes_the_turns_before_one_out_of_history_and_log() -> None:
    async with stage(["marker one", "marker two", "three", "four"]) as on:
        await on.say("marker first", "marker second", "third")
        kept = on.session.conversation()[4:]
        await on.session.forget("u3")
        assert on.session.conversation() == kept
        assert all(a is b for a, b in zip(on.session.conversation(), kept, strict=True))
        assert await said_in(on.store, "marker") == []
        assert on.session.status().generation == 2
        assert (await on.kinds())[-2:] == ["conversation.forgotten", "records.redacted"]
        await same_as_its_log(on, on.session)
        assert await on.say("fourth") == "four"
        assert len(on.provider.requests[-1].messages) == 3


async def test_aborted_rewound_and_failed_turns_from_before_go_with_it() -> None:
    tool = Tool(name="t", run=Quick("marker result"))
    script = [
        call("t", {"x": "marker"}, id="a"), never(), "rewound marker", "kept",
    ]  # fmt: skip
    async with stage(script, tools=[tool]) as on:
        await on.interrupted("marker aborted")
        await on.say("marker rewound")
        await on.session.rewind(0)
        await on.say("kept question")
        await on.session.forget(3)
        # The receipt of turn 1 was in the message that is kept: what it named is forgotten.
        assert await said_in(on.store, "marker") == []
        assert [block.text for block in on.session.conversation()[0].content] == ["kept question"]  # type: ignore[union-attr]  # texts
        await same_as_its_log(on, on.session)


async def test_a_receipt_keeps_what_it_says_of_turns_that_are_not_forgotten() -> None:
    tool = Tool(name="t", run=Quick("ran"))
    script = [
        "one", call("t", {"x": "early"}, id="a"), never(), "two",
        call("t", {"x": "late"}, id="b"), never(), "three",
    ]  # fmt: skip
    async with stage(script, tools=[tool]) as on:
        await on.say("first")
        await on.interrupted("dropped early")
        await on.say("carries early")
        await on.interrupted("dropped late")
        await on.say("carries late")
        await on.session.forget(3)
        texts = [block.text for block in on.session.conversation()[2].content]  # type: ignore[union-attr]  # texts
        assert texts[0] == "carries late"
        assert "late" in texts[1]
        assert len(on.session.conversation()[0].content) == 1
        assert await said_in(on.store, "early") == await said_in(on.store, "carries early")
        await same_as_its_log(on, on.session)


@pytest.mark.parametrize("earlier", [False, True])
async def test_the_answer_to_an_interrupt_of_a_kept_turn_loses_the_receipt_that_the_turn_lost(
    earlier: bool,
) -> None:
    tool = Tool(name="t", run=Quick("ran"))
    half = say("half a reply").hanging(at=3)
    script = ["one", "two", call("t", {"x": "marker"}, id="a"), never(), half]
    async with stage(script, tools=[tool]) as on:
        await on.say("first")
        await on.say("second")
        await on.interrupted("dropped")
        await on.begin("kept")
        stopped = await on.session.interrupt(policy="keep_text", command_id="stop")
        assert b"marker" in bytes(stopped.turns[0].messages[0].body)
        if earlier:  # the record with the answer is behind a redaction that had no part in it
            await on.session.forget(2)
            assert await said_in(on.store, "marker") != []
        await on.session.forget(4)
        assert await said_in(on.store, "marker") == []
        again = await on.session.interrupt(policy="keep_text", command_id="stop")
        assert again.turns[0].messages == on.session.conversation()
        assert again.turns[0].user_text == "kept"
        await same_as_its_log(on, on.session)


async def test_an_answer_with_a_forgotten_and_a_kept_turn_is_redacted_once() -> None:
    tool = Tool(name="t", run=Quick("ran"))
    half = say("half a reply").hanging(at=3)
    async with stage(
        ["one", call("t", {"x": "marker"}, id="a"), never(), half], tools=[tool]
    ) as on:
        await on.say("first")
        await on.begin("dropped")
        await on.session.send("waits")
        await on.begin("kept", when_busy="interrupt")
        stopped = await on.session.interrupt(policy="keep_text", command_id="stop")
        assert [outcome.turn.number for outcome in stopped.turns] == [3, 4]
        await on.session.forget(4)
        assert await said_in(on.store, "marker") == []
        again = await on.session.interrupt(policy="keep_text", command_id="stop")
        assert [outcome.user_text for outcome in again.turns] == ["", "kept"]
        await same_as_its_log(on, on.session)


async def test_thinking_that_was_bound_to_what_is_forgotten_is_not_sent_again() -> None:
    script = [say("one"), think("bound", "s") + say("two"), think("free", "s2") + say("three"), "x"]
    async with stage(script) as on:
        await on.say("first", "second")
        await on.session.forget(2)
        await on.say("third")
        assert b"bound" not in on.provider.requests[-1].encode()
        await on.say("fourth")
        assert b"free" in on.provider.requests[-1].encode()


async def test_summaries_and_views_of_what_is_kept_stay_and_others_go() -> None:
    from llmsession import CompactionConfig

    long = "a line of output, {n}\n"
    script = [each for n in range(4) for each in (call("t", id=f"c{n}"), f"done {n}")]
    tool = Tool(name="t", run=Quick(long * 400))
    compaction = CompactionConfig(keep_recent_turns=1, keep_recent_steps=1)
    async with stage(script, tools=[tool], compaction=compaction) as on:
        for n in range(3):
            await on.say(f"turn {n}")
        assert (await on.session.compact()).applied
        shown = [bytes(m.body) for m in on.session.context().messages]
        compacted_before = on.session.status().compacted_before
        await on.session.forget(2)
        assert [bytes(m.body) for m in on.session.context().messages] == shown[4:]
        assert on.session.status().compacted_before == max(0, compacted_before - 4)
        assert "c0" not in live_state(on.session).view.shown_results
        assert "c1" in live_state(on.session).view.shown_results
        await same_as_its_log(on, on.session)
        assert await on.say("goes on") == "done 3"


@pytest.mark.parametrize("before", [2, 9, 0, "x", "u0"])
async def test_what_is_no_turn_of_the_history_cannot_be_forgotten_before(before: Any) -> None:
    async with stage(["one", never()]) as on:
        await on.say("first")
        await on.interrupted("dropped")
        with pytest.raises(InvalidInput):
            await on.session.forget(before)
        assert len(on.session.conversation()) == 2


@pytest.mark.parametrize("before", [float("nan"), float("inf"), datetime(2020, 1, 1)])
async def test_a_moment_that_says_nothing_is_refused(before: Any) -> None:
    async with stage() as on:
        with pytest.raises(InvalidInput):
            await on.session.forget(before)


async def test_forgetting_before_the_first_turn_changes_nothing() -> None:
    async with stage(["one", "two"]) as on:
        await on.say("first")
        head = live_state(on.session).head
        await on.session.forget(1)
        assert live_state(on.session).head == head
        assert on.session.status().generation == 1
        await on.say("second")
        await on.session.forget(2)
        head = live_state(on.session).head
        await on.session.forget(2)
        assert live_state(on.session).head == head
        await on.session.forget(2, command_id="k")
        assert live_state(on.session).head == head + 1  # the id is remembered


async def test_the_id_of_a_forgotten_call_is_not_given_to_another() -> None:
    script = [call("t", {"x": "marker"}, id="c"), call("t", id="c"), "done"]
    async with stage(script, tools=[Tool(name="t")]) as on:
        await on.interrupted("first")
        await on.session.clear(purge=True)
        turn = await on.begin("second")
        # The caller of the first one is late: its result must not answer the second.
        with pytest.raises(TurnNotOpen):
            await on.submit(c="late")
        with pytest.raises(UnknownToolCall):
            await on.session.store_compact_summaries({"c": "the marker again"})
        await on.submit(c_2="in time")
        assert await turn.text() == "done"
        assert await said_in(on.store, "marker") == []
        await same_as_its_log(on, on.session)


async def test_a_fork_does_not_know_the_turns_that_were_forgotten_before_it() -> None:
    async with stage(["marker one", "two", "three"]) as on:
        await on.say("marker first")
        await on.session.rewind(0)
        await on.say("second", "third")
        await on.session.forget(3)
        fork = await on.session.fork(at=3)
        for at in (1, 2):
            with pytest.raises(InvalidInput, match="forgotten"):
                await fork.fork(at=at)
        head = live_state(fork).head
        await fork.forget(3)  # there is nothing more to forget
        assert live_state(fork).head == head


# forget before a moment


@pytest.mark.parametrize(
    ("moments", "before", "left"),
    [
        ((1001.0, 1002.0, 1003.0), 1000.0, [1, 2, 3]),
        ((1001.0, 1002.0, 1003.0), 1001.0, [1, 2, 3]),
        ((1001.0, 1002.0, 1003.0), 1001.5, [2, 3]),
        ((1001.0, 1002.0, 1003.0), datetime.fromtimestamp(1003, UTC), [3]),
        ((1001.0, 1002.0, 1003.0), 1004.0, []),
        # The clock went back: turn 3 was said before 2, but stands behind it.
        ((1001.0, 1005.0, 1002.0), 1003.0, [2, 3]),
    ],
)
async def test_turns_accepted_before_a_moment_go(
    moments: Sequence[float], before: float | datetime, left: list[int]
) -> None:
    now = 1000.0
    async with stage([f"answer {n}" for n in range(3)], clock=lambda: now) as on:
        for now in moments:
            await on.say(f"said at {now}")
        await on.session.forget(before)
        assert sorted({m.turn for m in on.session.conversation()}) == left
        await same_as_its_log(on, on.session)


async def test_an_aborted_turn_from_after_the_moment_stays_in_the_log() -> None:
    async with stage(["one", never(), "three"]) as on:
        await on.say("first")
        await anyio.lowlevel.checkpoint()
        log = await on.log()
        await on.interrupted("the marker")
        moment = (await on.log())[len(log)].at
        assert moment > log[1].at
        await on.session.forget(moment)
        assert on.session.conversation() == ()
        assert await said_in(on.store, "marker") != []
        assert await said_in(on.store, "first") == []
        await same_as_its_log(on, on.session)


async def test_a_turn_that_reports_two_dropped_ones_reports_the_one_that_is_not_forgotten() -> None:
    now, tool = 1000.0, Tool(name="t", run=Quick("ran"))
    script = [
        call("t", {"x": "early"}, id="a"), never(), call("t", {"x": "late"}, id="b"), never(),
        "three", "again",
    ]  # fmt: skip
    async with stage(script, tools=[tool], clock=lambda: now) as on:
        for now in (1001.0, 1002.0):
            await on.interrupted(f"dropped at {now}")
        now = 1003.0
        await on.say("carries both")
        await on.session.forget(1001.5)
        receipt = str(on.session.conversation()[0].content[-1])
        assert "late" in receipt
        assert "early" not in receipt
        assert await said_in(on.store, "early") == []
        await same_as_its_log(on, on.session)


# Forks of what was forgotten.


async def test_a_fork_at_a_turn_behind_forgotten_ones_begins_with_what_is_left() -> None:
    async with stage(["marker one", "two", "three", "in the fork"]) as on:
        await on.say("marker first", "second", "third")
        await on.session.forget(2)
        fork = await on.session.fork(at=2, session_id="f")
        assert [m.text for m in fork.conversation()] == ["second", "two"]
        assert await (await fork.send("go on")).text() == "in the fork"
        assert len(on.provider.requests[-1].messages) == 3
        assert await said_in(on.store, "marker", "f") == []
        await same_as_its_log(on, fork)
        with pytest.raises(InvalidInput, match="forgotten"):
            await on.session.fork(at=1)
        whole = await on.session.fork()
        assert [m.turn for m in whole.conversation()] == [2, 2, 3, 3]


async def test_a_fork_behind_a_forgotten_turn_sends_no_thinking_that_was_bound_to_its_receipt() -> (
    None
):
    tool = Tool(name="t", run=Quick("ran"))
    script = [
        call("t", {"x": "marker"}, id="a"), never(), think("bound", "s") + say("two"),
        think("bound", "s2") + say("three"), think("free", "s3") + say("in the fork"), "more",
    ]  # fmt: skip
    async with stage(script, tools=[tool]) as on:
        await on.interrupted("dropped")
        await on.say("carries the receipt", "and on")
        await on.session.forget(before=2)
        fork = await on.session.fork(at=3, session_id="f")
        assert await (await fork.send("go on")).text() == "in the fork"
        assert b"marker" not in on.provider.requests[-1].encode()
        assert b"bound" not in on.provider.requests[-1].encode()
        assert await (await fork.send("and now?")).text() == "more"
        assert b"free" in on.provider.requests[-1].encode()
        await same_as_its_log(on, fork)
        await same_as_its_log(on, on.session)


async def test_a_fork_before_anything_was_forgotten_keeps_its_thinking() -> None:
    script = [think("bound", "s") + say("one"), "in the fork"]
    async with stage(script) as on:
        await on.say("first")
        fork = await on.session.fork(at=1, session_id="f")
        await (await fork.send("go on")).text()
        assert b"bound" in on.provider.requests[-1].encode()


async def test_a_fork_of_a_fork_of_which_turns_were_forgotten_sends_no_void_thinking() -> None:
    tool = Tool(name="t", run=Quick("ran"))
    script = [
        call("t", {"x": "marker"}, id="a"), never(), "two", think("bound", "s") + say("three"), "x",
    ]  # fmt: skip
    async with stage(script, tools=[tool]) as on:
        await on.interrupted("dropped")
        await on.say("carries the receipt")
        fork = await on.session.fork(at=2, session_id="f")
        await (await fork.send("thinks in the fork")).text()
        await fork.forget(before=2)
        await same_as_its_log(on, fork)
        second = await fork.fork(at=3, session_id="g")
        await (await second.send("go on")).text()
        assert b"bound" not in on.provider.requests[-1].encode()
        await same_as_its_log(on, second)


async def half_made_fork(on: Stage) -> LLMSession:
    """A fork after turn 2, of a session that has forgotten turn 1 since. Its first records were
    never written."""
    upto = live_state(on.session).committed_at[2]
    await on.session.forget(2)
    lease = await on.store.fork("s", upto, "f", (await on.store.row("s")).owner)  # type: ignore[arg-type]  # it is held
    await on.store.release(lease)
    return await on.manager.open("f")


async def test_a_fork_that_was_left_half_made_begins_with_what_is_left_too() -> None:
    async with stage(["one", "two"]) as on:
        await on.say("first", "second")
        fork = await half_made_fork(on)
        assert [m.text for m in fork.conversation()] == ["second", "two"]
        await same_as_its_log(on, fork)


async def test_a_fork_forgets_no_more_for_a_reply_that_lost_all_its_blocks() -> None:
    search = block({"type": "server_tool_use", "id": "srv", "name": "web", "input": {}})
    async with stage(["one", search.stopping("end_turn"), "three"]) as on:
        await on.say("first")
        await on.outcome("second")
        fork = await half_made_fork(on)
        assert [m.text for m in fork.conversation()] == ["second", ""]
        assert await (await fork.send("go on")).text() == "three"


# Failures between the two steps.


async def test_nobody_is_answered_before_it_is_out_of_the_log() -> None:
    store = Doubtful()
    async with stage(["marker", "after"], store=store) as on:
        await on.say("first")
        store.hold_back = anyio.Event()
        done: list[str] = []

        async def purge() -> None:
            await on.session.clear(purge=True)
            done.append("purge")

        async def send() -> None:
            done.append(await on.say("behind it"))

        async with anyio.create_task_group() as group:
            group.start_soon(purge)
            await settled()
            group.start_soon(send)
            await settled()
            try:
                assert done == []
                assert on.session.status().jobs == ("redaction",)
                assert on.session.conversation() == ()
                assert await runtime_of(on.manager).evict_idle() == 0
            finally:
                store.hold_back.set()
        assert done == ["purge", "after"]
        assert on.session.status().jobs == ()


async def test_an_interrupt_is_answered_while_records_are_redacted() -> None:
    store = Doubtful()
    async with stage(["one", "two"], store=store) as on:
        await on.say("first")
        store.hold_back = anyio.Event()
        async with (
            meanwhile(lambda: on.session.clear(purge=True)),
            meanwhile(lambda: on.session.send("never heard")) as turns,
        ):
            with lasting(0, abs=1):
                assert (await on.session.interrupt()).result == "aborted"
            store.hold_back.set()
        assert (await turns[0].outcome()).stop_reason == "interrupt"
        await same_as_its_log(on, on.session)
        assert await on.say("hello") == "two"


@pytest.mark.parametrize("after", [False, True], ids=["nothing changed", "its answer was lost"])
async def test_a_failed_rewrite_is_told_and_finished_when_the_session_is_opened(
    after: bool,
) -> None:
    store = Doubtful()
    store.after = after
    async with stage(["one marker", "two"], store=store) as on:
        await on.say("first")
        store.failures = [StoreError("the disk is full", committed=None if after else False)]
        with pytest.raises(StoreError, match="erased when the session is opened again"):
            await on.session.clear(purge=True, command_id="k")
        assert on.session.status().phase == "cold"
        assert bool(await said_in(store, "marker")) is not after
        assert await on.say("second") == "two"  # it comes back, and pays first
        assert await said_in(store, "marker") == []
        assert (await on.kinds()).count("records.redacted") == 1
        await same_as_its_log(on, on.session)
        await on.session.clear(purge=True, command_id="k")  # it was done: nothing happens
        assert len(on.session.conversation()) == 2


async def test_a_session_that_cannot_pay_is_not_opened_and_pays_later() -> None:
    store = Doubtful()
    async with stage(["marker"], store=store) as on:
        await on.say("first")
        store.failures = [StoreError("no", committed=False), StoreError("still", committed=False)]
        with pytest.raises(StoreError):
            await on.session.forget(float(2**40))
        with pytest.raises(StoreError, match="still"):
            await on.session.send("hello")
        assert await said_in(store, "marker") != []
        assert (await store.row("s")).owner is None
        session = await on.manager.open("s")
        assert session.conversation() == ()
        assert await said_in(store, "marker") == []


@pytest.mark.parametrize("record", [b"conversation.cleared", b"records.redacted"])
async def test_a_store_that_fails_at_either_record_leaves_a_session_that_opens_whole(
    record: bytes,
) -> None:
    async with faulty_stage(["marker", "two"]) as (on, store):
        await on.say("first")
        real = store.append

        def append(batch: Any, done: Any) -> None:
            if record in batch.bodies[0]:
                store.append = real  # type: ignore[method-assign]  # for the next one
                store.fail_next()
            real(batch, done)

        store.append = append  # type: ignore[method-assign]  # to find the record
        with pytest.raises(StoreError):
            await on.session.clear(purge=True)
        session = await on.manager.open("s")
        is_purged = record == b"records.redacted"
        assert len(session.conversation()) == (0 if is_purged else 2)
        assert (await said_in(store, "marker") == []) is is_purged
        assert ((await on.kinds())[-1] == "records.redacted") is is_purged
        await same_as_its_log(on, session)


async def test_a_crash_between_the_steps_is_finished_by_the_next_owner() -> None:
    store = Doubtful()
    async with stage(["marker", "kept"], store=store) as on:
        await on.say("first", "second")
        store.failures = [StoreError("cut", committed=False)]
        with pytest.raises(StoreError):
            await on.session.forget(2)
        store.failures = []
        with anyio.fail_after(PATIENCE_S):
            async with SessionManager(provider=ScriptedProvider([]), store=store) as manager:
                session = await manager.open("s", takeover=True)
                assert [m.text for m in session.conversation()] == ["second", "kept"]
                assert await said_in(store, "marker") == []
                await same_as_its_log(on, session)
        del on.session


async def test_a_session_that_was_taken_over_meanwhile_is_not_rewritten() -> None:
    store = Doubtful()
    async with stage(["marker"], store=store) as on:
        await on.say("first")
        store.failures = [SessionMoved("taken")]
        with pytest.raises(SessionMoved):
            await on.session.clear(purge=True)
        assert on.session.status().phase == "moved"
        assert await said_in(store, "marker") != []


async def test_a_damaged_record_is_named_and_nothing_is_rewritten() -> None:
    store = Doubtful()
    async with stage(["marker"], store=store) as on:
        await on.say("first")
        store._logs["s"].bodies[1] = b"{"
        with pytest.raises(StoreError, match="record 2"):
            await on.session.clear(purge=True)
        assert store.rewrites == []
        with pytest.raises(RecordDamaged):
            await on.manager.open("s")
        await on.manager.delete("s")
        del on.session


async def test_only_what_changes_is_rewritten_and_in_one_go() -> None:
    store = Doubtful()
    async with stage([f"answer {n}" for n in range(5)], store=store) as on:
        for n in range(5):
            await on.say(f"question {n}")
        await on.session.forget(3)
        assert len(store.rewrites) == 1
        assert sorted(store.rewrites[0]) == [2, 3, 4, 5]  # two records for each turn
        await on.session.forget(4)
        assert sorted(store.rewrites[1]) == [6, 7]


async def test_a_close_waits_until_it_is_out_of_the_log() -> None:
    store = Doubtful()
    async with stage(["marker"], store=store) as on:
        await on.say("first")
        store.hold_back = anyio.Event()
        async with (
            meanwhile(lambda: on.session.clear(purge=True)),
            meanwhile(on.session.close) as closed,
        ):
            assert closed == []
            store.hold_back.set()
        assert len(closed) == 1
        assert await said_in(store, "marker") == []
