"""The soak itself, with real processes, in a few seconds; and what its page says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from benchmarks.soak.conductor import run_soak
from benchmarks.soak.errand import Told
from benchmarks.soak.flatness import Rules, Sample
from benchmarks.soak.model import MAX_STEPS, Asked, reply_to
from benchmarks.soak.report import Report, SoakPlan, figures, told_as_table, write_page
from benchmarks.soak.verdict import Checked, check_store
from llmsession import SessionConfig, SessionManager, SqliteStore
from llmsession.store import Batch, Lease, this_process
from llmsession.testing import Received, ScriptedProvider, call
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.records import encode_record
from llmsession.turns.usage import Usage

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

QUICK = SoakPlan(
    minutes=0.1, clients=1, lives=4, round_s=12.0, rest_s=8.0, faults=("stop", "vacuum")
)


@pytest.mark.long  # real processes for a minute: what it meets is up to the machine
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_service_under_load_with_faults_keeps_its_promises(tmp_path: Path) -> None:
    report = await run_soak(QUICK, tmp_path)
    assert report.complaints == ()
    assert not report.growths
    counts = figures(report)["counts"]
    assert counts["checked turns"] > 0
    assert counts["send"] > 0
    assert report.faults["services killed"] == 1
    assert {sample.life for sample in report.samples} == {1, 2}
    assert report.samples[-1].rest == 1
    assert all(sample.tasks > 0 for sample in report.samples)
    assert sum(asked.requests for asked in report.asked) > 0
    assert report.checked.sessions > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_turn_without_an_end_and_one_with_two_are_found_in_the_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "soak.db"
    async with SessionManager(provider=ScriptedProvider([]), store=SqliteStore(path)) as manager:
        for session in ("open", "twice", "whole"):
            await manager.create(SessionConfig(model="m"), session_id=session)
    accepted = r.TurnAccepted(turn=1, body=encode_blocks("x"), started=True)
    aborted = r.TurnAborted(turn=1, reason="interrupt", usage=Usage())
    store = SqliteStore(path)
    logs: dict[str, list[r.Record]] = {"open": [accepted], "twice": [accepted, aborted, aborted]}
    for session, records in logs.items():
        lease = await store.acquire(session, this_process("test"))
        await append(store, lease, records)
        await store.release(lease)
    await store.aclose()
    found = await check_store(f"sqlite:{path}", tmp_path)
    assert (found.sessions, found.open_turns) == (3, 1)
    assert {told.partition(":")[0] for told in found.complaints} == {"open", "twice"}


async def append(store: SqliteStore, lease: Lease, records: Sequence[r.Record]) -> None:
    durable = anyio.Event()
    bodies = tuple(
        encode_record(msgspec.structs.replace(each, seq=lease.head + at, epoch=lease.epoch, at=1.0))
        for at, each in enumerate(records, 1)
    )
    store.append(
        Batch(lease.session, lease.epoch, lease.head, bodies, 1.0), lambda _: durable.set()
    )
    await durable.wait()


# The model.


def received(number: int, *messages: dict[str, Any]) -> Received:
    tools = [{"name": "ask"}, {"name": "recall"}]
    body = {"system": "s", "tools": tools, "messages": list(messages)}
    return Received(number=number, method="POST", path="/v1/messages", headers={}, body=body)


def test_the_model_calls_tools_for_a_while_and_then_comes_to_an_end() -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "go"}]}
    step = [{"role": "assistant", "content": []}, {"role": "user", "content": []}]

    def asks(steps: int) -> set[bool]:
        replies = [reply_to(1, received(at, said, *step * steps)) for at in range(40)]
        called = call("ask", {}, id="call_0").blocks[0][:40]
        return {any(block.startswith(called[:20]) for block in each.blocks) for each in replies}

    assert asks(1) == {True, False}
    assert asks(MAX_STEPS) == {False}


def test_equal_requests_get_equal_replies() -> None:
    said = {"role": "user", "content": "go"}
    assert reply_to(1, received(7, said)) == reply_to(1, received(7, said))
    assert len({reply_to(seed, received(7, said)).blocks for seed in range(8)}) > 1


# What is told.


def report(*samples: Sample, complaints: tuple[str, ...] = ()) -> Report:
    told = Told(
        counts={"checked turns": 12, "send": 5}, complaints=(), sends_ms=(1.0, 2.0, 9.0),
        interrupts_ms=(3.0,),
    )  # fmt: skip
    return Report(
        plan=SoakPlan(), seconds=120.0, lives=2, rests=3, samples=samples,
        faults={"services killed": 1}, told=((60.0, told), (100.0, told)),
        asked=(Asked(requests=40, spoiled=3),), checked=Checked(sessions=4, records=99),
        complaints=complaints, rules=Rules(),
    )  # fmt: skip


def grown() -> tuple[Sample, ...]:
    return tuple(Sample(at_s=rest * 60.0, life=1, rest=rest, tasks=9 * rest) for rest in (1, 2))


def test_a_soak_holds_where_nothing_grew_and_nobody_complained() -> None:
    assert report().holds
    assert not report(complaints=("a turn has no end",)).holds
    assert not report(*grown()).holds


def test_the_table_has_what_was_done_and_what_was_seen() -> None:
    table = told_as_table(report(Sample(at_s=1.0, life=1, tasks=7, handles=31, lag_s=0.002)))
    assert "| turns of stress, checked record by record | 24 |" in table
    assert "| requests to the model, of these spoiled | 40, 3 |" in table
    assert "| handles under load, least to most | 31 to 31 |" in table
    assert "| left in the store | 4 sessions, 99 records |" in table


def test_the_page_keeps_what_stands_around_its_figures_and_says_what_did_not_hold(
    tmp_path: Path,
) -> None:
    page = tmp_path / "soak.md"
    page.write_text("# Soak\n\n<!-- figures -->\nold\n<!-- end of figures -->\n\nThe end.\n")
    write_page(report(), "a machine", page)
    written = page.read_text("utf-8")
    assert written.startswith("# Soak\n\n<!-- figures -->")
    assert written.endswith("<!-- end of figures -->\n\nThe end.\n")
    assert "old" not in written
    assert "Nothing grew, and no promise was broken." in written
    write_page(report(*grown(), complaints=("no end",)), "a machine", page)
    written = page.read_text("utf-8")
    assert "* tasks: life 1: 9 at its first rest, 18 at a later one" in written
    assert "* no end" in written
