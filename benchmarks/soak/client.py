"""A client process of a soak: ``python -m benchmarks.soak.client ERRAND``, which is JSON.

It runs stress, whose record is checked, and lives (``lives.py``) beside it, and says in one line
of JSON what it saw. It may be killed at any moment: that is a part of the soak.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec

from llmsession.errors import Overloaded
from llmsession.testing import StressPlan, StressReport, encode_lines
from llmsession.testing.recording.entries import Recording, Returned
from llmsession.testing.stress.service_clients import run_stress_at

from .errand import MODEL, Errand, TellTale
from .joining import joined
from .lives import live

__all__: list[str] = []

MARGIN_S = 120.0
"""The service is killed, stopped and slowed: an interrupt waits for it."""
SESSIONS = 3
REFUSED_S = 1.0


async def _stress(errand: Errand, tale: TellTale) -> None:
    """Rounds of stress until there is no time left, on two connections each."""
    loop = asyncio.get_running_loop()
    until = loop.time() + errand.seconds
    seed = errand.seed * 1000
    while (left_s := until - loop.time()) > 1:
        seed += 1
        seconds = min(left_s, 15.0)
        plan = StressPlan(sessions=SESSIONS, turns=12, interrupts=4, seconds=seconds, seed=seed)
        try:
            _note(await _stressed(errand, plan), errand, tale)
        except* Overloaded:  # the service has just been stopped, or the machine is busy
            tale.counts["stress was refused"] += 1
            await asyncio.sleep(REFUSED_S)


async def _stressed(errand: Errand, plan: StressPlan) -> StressReport:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(joined(each, errand.patience_s))
            for each in errand.addresses
        ]
        return await run_stress_at(clients, plan, model=MODEL, margin_s=MARGIN_S)


def _note(report: StressReport, errand: Errand, tale: TellTale) -> None:
    tale.counts["checked turns"] += report.turns
    tale.counts["checked entries"] += len(report.recording.entries)
    tale.interrupts_ms += _latencies(report.recording, "interrupt")
    tale.sends_ms += _latencies(report.recording, "send")
    if report.violations:
        kept = Path(errand.folder) / f"{errand.name}-{report.plan.seed}.jsonl"
        kept.write_bytes(b"".join(encode_lines(report.recording.entries)))
        tale.complaints += [f"{kept.name}: {each.text}" for each in report.violations]


def _latencies(recording: Recording, command: str) -> list[float]:
    return [
        (answer.at - call.at) * 1000
        for session in recording.sessions.values()
        for call in session.invoked.values()
        if call.command == command
        for answer in session.returned.get(call.call, ())
        if isinstance(answer, Returned)
    ]


async def _run(errand: Errand) -> None:
    tale = TellTale()
    async with anyio.create_task_group() as group:
        if errand.stresses:
            group.start_soon(_stress, errand, tale)
        for number in range(errand.lives):
            group.start_soon(live, errand, number, tale)
    os.write(1, msgspec.json.encode(tale.told()) + b"\n")


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=Errand)))
