"""Stress runs on the real actors, in real time. What they have to reach is asserted, too: an
invariant that was never put to the test says nothing."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from llmsession.errors import InvalidInput
from llmsession.testing.checker.checker import check
from llmsession.testing.recording.entries import decode_lines, encode_lines
from llmsession.testing.recording.violation import Violation
from llmsession.testing.stress.run import StressPlan, StressReport, run_stress
from tests.steady_time import steady_backend

pytestmark = pytest.mark.real_time


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.long)])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Threads are waited for, and otherwise a turn of the loop takes as long on every machine. On
    a slow one interrupts would come so early that hardly anything was left to compact."""
    return steady_backend(request.param, stall_s=0.0002)


SMALL = StressPlan(sessions=16, turns=30, interrupts=4, seconds=20, seed=5)
REACHED = {
    # Every mode and every policy, with and without a named turn.
    "accepted queue": 50,
    "accepted interrupt": 5,
    "accepted reject": 1,
    "accepted steer": 5,
    "steers": 10,
    "interrupt drop_turn all": 3,
    "interrupt drop_turn named": 1,
    "interrupt keep_steps all": 3,
    "interrupt keep_steps named": 1,
    "interrupt keep_text all": 3,
    "interrupt keep_text named": 1,
    "interrupt configured all": 3,
    # Every outcome of a turn, of an interrupt, of a step.
    "aborted interrupt": 20,
    "aborted replaced": 2,
    "committed cancelled": 2,
    "committed end_turn": 10,
    "committed stop_sequence": 1,
    "committed max_tokens": 3,
    "committed model_context_window_exceeded": 1,
    "committed novel_reason": 1,
    "failed fatal": 1,
    "failed refusal": 1,
    "answer aborted": 20,
    "answer kept": 3,
    "answer not_running": 1,
    "retries": 10,
    "late reports": 3,
    "named as still running": 1,
    "receipts": 3,
    # Tools and their callers.
    "tool calls": 50,
    "expired calls": 3,
    "failed calls": 10,
    "capped results": 1,
    "refused UnknownToolCall": 3,
    "refused DuplicateToolResult": 1,
    "refused TurnNotOpen": 2,
    # Everything else that can be asked.
    "compactions": 25,
    "prefix_summaries": 5,
    "compacted asked": 5,
    "compacted overflow": 1,
    "compacted threshold": 4,
    "compacted window": 3,
    "warnings": 1,
    "answer applied": 1,
    "clears": 1,
    "rewritten records": 50,
    "configures": 10,
    "summaries stored": 5,
    "refused KeyReused": 3,
    "refused SessionBusy": 5,
    "refused InvalidMessage": 1,
    "subscriber closed": 16,
    "subscriber vanished": 20,
    "subscriber resumed": 20,
    "subscriber terminal": 20,
    "previews": 500,
}
"""At least this often; on a machine that is busy, too, runs of this plan reach far more."""
SELDOM = (
    "aborted closed",
    "answer unknown_turn",
    "committed max_seconds",
    "compacted cold_cache",
    "compacted pays_back",
    "forgets",
    "forks",
    "labels",
    "purges",
    "rewinds",
)
"""Each about five times in a run of this plan, so that now and then one of them is missing."""


def told(violations: tuple[Violation, ...]) -> str:
    return "\n".join(str(violation) for violation in violations[:20])


def too_few(report: StressReport) -> dict[str, int]:
    counts = report.counts
    few = {name: counts.get(name, 0) for name, n in REACHED.items() if counts.get(name, 0) < n}
    seldom = sum(name in counts for name in SELDOM)
    return few | ({"seldom": seldom} if seldom < len(SELDOM) / 2 else {})


async def test_a_small_run_violates_nothing_and_reaches_everything() -> None:
    report = await run_stress(SMALL)
    print(report.counts)
    assert report.violations == (), told(report.violations)
    assert too_few(report) == {}, f"too few to speak of, of {report.turns} turns"
    assert report.interrupt_p99_ms >= report.interrupt_p50_ms > 0


async def test_a_run_is_checked_alike_from_its_lines() -> None:
    report = await run_stress(StressPlan(sessions=2, turns=6, interrupts=2, seconds=10, seed=2))
    lines = list(encode_lines(report.recording.entries))
    assert check(decode_lines(lines)) == report.violations == ()
    assert len(lines) > 100


@pytest.mark.parametrize(
    "fields",
    [
        {"sessions": 0},
        {"turns": -1},
        {"interrupts": -1},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"block": -0.1},
    ],
)
async def test_a_plan_that_cannot_be_run_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        await run_stress(StressPlan(**fields))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
async def test_a_long_run_violates_nothing(seed: int) -> None:
    plan = StressPlan(sessions=80, turns=120, interrupts=20, seconds=90, seed=seed)
    report = await run_stress(plan)
    print(report.counts)
    assert report.violations == (), told(report.violations)
    assert report.turns > 80 * 40


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("block", [0.005, 0.05, 0.4])
def test_a_run_whose_event_loop_is_blocked_again_and_again_violates_nothing(
    block: float, backend: str
) -> None:
    plan = StressPlan(sessions=60, turns=120, interrupts=40, seconds=60, seed=7, block=block)
    report = anyio.run(run_stress, plan, backend=backend)  # by a clock that goes on meanwhile
    print(report.counts)
    assert report.violations == (), told(report.violations)
    assert report.turns > 60 * 20
