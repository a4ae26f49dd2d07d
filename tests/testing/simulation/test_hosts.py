"""The simulation of a cluster's hosts: no seed violates an invariant, a seed is one run, and a rule
of leases or of hand-overs that is broken is found."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from llmsession.session.actor.turn_queue import TurnQueue
from llmsession.session.tasks.owner_lease import OwnerLease
from llmsession.store import held_leases
from llmsession.store.held_leases import HeldLeases
from llmsession.store.memory import MemoryStore
from llmsession.testing import SimulationPlan, run_schedule, schedule_of, simulate
from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.simulation import run
from llmsession.testing.simulation.run import SimRun
from llmsession.testing.simulation.schedule import (
    Cut,
    DeclareDead,
    HandOver,
    Move,
    Schedule,
    Send,
    Step,
)

CHUNKS, SEEDS, HOSTS = 2, 4, 3


def told(failed: SimRun) -> str:
    return "\n".join([str(failed.schedule), *map(str, failed.violations)])


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_seed_of_hosts_violates_an_invariant(chunk: int) -> None:
    report = simulate(SimulationPlan(seed=chunk * SEEDS, seeds=SEEDS, hosts=HOSTS))
    assert not report.failures, told(report.failures[0].run)
    assert report.runs == SEEDS
    assert any(name.startswith("hand-over, ") for name in report.reached)


def recording_of(seed: int) -> str:
    entries = run_schedule(schedule_of(seed, hosts=HOSTS)).recording.entries
    return hashlib.sha256(b"".join(encode_lines(entries))).hexdigest()


def test_a_seed_of_hosts_is_one_run_in_every_process() -> None:
    here = recording_of(5)
    assert here == recording_of(5)
    code = "from tests.testing.simulation.test_hosts import recording_of;print(recording_of(5))"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert there.stdout.strip() == here


# A rule that is broken is found


def texts(seed: int, *steps: Step) -> list[str]:
    """The violations of a schedule of one session."""
    by_time = tuple(sorted(steps, key=lambda step: step.at))
    schedule = Schedule(seed=seed, sessions=1, hosts=HOSTS, steps=by_time)
    return [violation.text for violation in run_schedule(schedule).violations]


def sends(begin: float, end: float, count: int) -> tuple[Send, ...]:
    """Sends at equal distances."""
    every_s = (end - begin) / count
    return tuple(
        Send(at=round(begin + number * every_s, 3), session=0, number=number)
        for number in range(count)
    )


NO_RENEWAL: tuple[Step, ...] = (
    Cut(at=0.3, process=0, from_whom="renewals", seconds=2.0),
    *sends(0.3, 2.0, 10),
)
RAN_OUT = "a request began at host 0, although its lease had run out"


@pytest.mark.parametrize("bug", ["never invalid", "relied on for too long"])
def test_an_owner_that_goes_on_when_its_lease_has_run_out_is_found(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert texts(0, *NO_RENEWAL) == []
    if bug == "never invalid":
        monkeypatch.setattr(HeldLeases, "is_valid", lambda self, owner: True)
    else:
        monkeypatch.setattr(held_leases, "VALID_SHARE", 1.3)
    assert RAN_OUT in texts(0, *NO_RENEWAL)


def test_an_owner_that_was_cut_off_and_does_not_ask_who_took_what_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = (
        Cut(at=0.3, process=0, from_whom="renewals", seconds=1.0),
        Send(at=0.92, session=0, number=0),  # its request waits for the lease
        Cut(at=0.95, process=0, from_whom="store", seconds=0.5),
        DeclareDead(at=0.96, process=0),
        Cut(at=0.96, process=0, from_whom="clients", seconds=1.0),
    )
    assert [text for seed in range(3) for text in texts(seed, *steps)] == []

    async def asks_nobody(self: OwnerLease) -> bool:
        return True

    monkeypatch.setattr(OwnerLease, "_ask_all", asks_nobody)
    expected = f"{RAN_OUT} when another owner took the session"
    assert any(expected in texts(seed, *steps) for seed in range(20))


def test_an_owner_that_ignores_that_its_session_was_taken_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = (Send(at=0.3, session=0, number=0), Move(at=0.3, session=0, phase="STREAMING"))
    assert texts(0, *steps) == []
    monkeypatch.setattr(HeldLeases, "taken", lambda self, owner, session, epoch: None)
    found = texts(0, *steps)
    assert any("a preview began at host 0, although it had heard" in text for text in found)


def test_a_shared_store_without_a_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MemoryStore.append

    def unfenced(self: MemoryStore, batch: Any, done: Any) -> None:
        row = self._logs[batch.session].row
        append(self, msgspec.structs.replace(batch, epoch=row.epoch, head=row.head), done)

    steps = (Send(at=0.3, session=0, number=0), Move(at=0.3, session=0, phase="TOOLS"))
    assert texts(4, *steps) == []
    monkeypatch.setattr(MemoryStore, "append", unfenced)
    # The log is torn, so that nobody can open the session.
    monkeypatch.setattr(run, "CHAOS_S", 3.0)
    monkeypatch.setattr(run, "QUIESCENCE_S", 3.0)
    assert any("after another one had taken the session" in text for text in texts(4, *steps))


def test_a_hand_over_that_loses_the_order_of_the_queue_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = (
        Send(at=0.3, session=0, number=0),
        HandOver(at=0.3, session=0, to=1, phase="STREAMING"),
        Send(at=0.3, session=0, number=1, phase="STREAMING"),
        Send(at=0.3, session=0, number=2, when_busy="interrupt", phase="STREAMING"),
    )
    nothing = property(lambda self: (), lambda self, turns: None)
    monkeypatch.setattr(TurnQueue, "left_waiting", nothing, raising=False)
    found = (text for seed in range(20) for text in texts(seed, *steps))
    assert any("was started, and turn" in text for text in found)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize("chunk", range(4))
def test_no_seed_of_many_hosts_violates_an_invariant(chunk: int, hosts: int) -> None:
    report = simulate(SimulationPlan(seed=2_000_000 + chunk * 500, seeds=500, hosts=hosts))
    print(f"{report.runs} schedules, {report.turns} turns")
    assert not report.failures, told(report.failures[0].run)
