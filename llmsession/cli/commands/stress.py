"""``llmsession stress``: many sessions at once, checked."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import typer

from llmsession.errors import InvalidInput
from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.simulation.search import SimulationPlan
from llmsession.testing.stress.run import StressPlan, StressReport, run_stress
from llmsession.testing.stress.service_clients import run_stress_at

from ..common.confirm import confirm
from ..common.exit_codes import BROKEN_PROMISE
from ..common.service import CaFile, ConnectTo, ServiceAt, TokenFile, model_at, service_at
from ..common.violations import print_breaches
from .simulate import run_simulation

__all__ = ["stress"]

CLIENTS = 4
"""Connections to a service: enough that a session is used on two."""


def stress(
    *,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="In virtual time, in a world that fails: see below."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="With --simulate: so many stories; 200.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(help="Sessions at once; 20, in a story 2.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="Sends to each session, beside bursts; 50.")
    ] = None,
    interrupts: Annotated[
        int | None, typer.Option(help="Interrupts of each, beside bursts; 10.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Start nothing new after this long; 20.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of all that is chosen; the timing only of a simulation.")
    ] = 0,
    record: Annotated[Path | None, typer.Option(help="Write the record there, as JSON lines.")] = (
        None
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --connect: which model.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --connect: do not ask.")] = False,
) -> None:
    """Send, answer, steer, interrupt, compact and vanish, all at once, and check what happened.

    The replies are made up; no model answers. Exits 1 if a promise was broken. With --connect the
    models of the service answer, several clients ask, and what they saw is checked; the sessions
    are deleted afterwards. With --simulate a seed decides everything, also in which order tasks go
    on: disk, clock, model, tools, clients and processes delay, fail, repeat and die, and a story
    that breaks a promise is printed as short as it can be made.
    """
    service = service_at(connect, token_file, ca)
    if service is None and (model is not None or yes):
        raise InvalidInput("--model and --yes are for --connect: here no model answers")
    if record is not None:
        record.open("wb").close()  # a place that cannot be written to is said before the work
    chosen = {"turns": turns, "interrupts": interrupts, "seconds": seconds}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    if simulate:
        unfit = [*given, *(["connect"] if service is not None else [])]
        if unfit:
            raise InvalidInput(f"--{unfit[0]} is not for --simulate: a seed decides all of a story")
        stories = SimulationPlan(seeds=200 if seeds is None else seeds, seed=seed)
        if sessions is not None:
            stories = msgspec.structs.replace(stories, sessions=sessions)
        run_simulation(stories, as_json=as_json, record=record)
        return
    if seeds is not None:
        raise InvalidInput("--seeds is for --simulate")
    if sessions is not None:
        given["sessions"] = sessions
    plan = StressPlan(seed=seed, **given)
    if service is None:
        report = anyio.run(run_stress, plan)
    else:
        plan = plan.checked()
        if not yes:
            most = plan.sessions * plan.turns
            question = (
                f"the models of {service.address} answer up to {most:,} turns, and may"
                " charge for it: go on?"
            )
            confirm(question, "nothing was asked; --yes does not ask")
        report = anyio.run(_stress_at, service, plan, model)
    if record is not None:
        with record.open("wb") as file:
            file.writelines(encode_lines(report.recording.entries))
    if as_json:
        print(msgspec.json.encode(_figures(report)).decode())
    else:
        _print_table(report)
    if report.breaches:
        print_breaches(report.breaches, of=f"with seed {report.plan.seed}")
        sys.exit(BROKEN_PROMISE)


async def _stress_at(service: ServiceAt, plan: StressPlan, model: str | None) -> StressReport:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(service.sessions())
            for _ in range(min(CLIENTS, plan.sessions))
        ]
        return await run_stress_at(clients, plan, model=model_at(clients[0], model))


def _figures(report: StressReport) -> dict[str, Any]:
    return {
        "sessions": report.plan.sessions,
        "turns": report.turns,
        "interrupts": report.counts.get("interrupts", 0),
        "breaches": len(report.breaches),
        "interrupt_p50_ms": report.interrupt_p50_ms,
        "interrupt_p99_ms": report.interrupt_p99_ms,
        "turns_per_second": round(report.turns_per_second, 1),
        "seconds": round(report.seconds, 3),
        "seed": report.plan.seed,
        "broken": [str(breach) for breach in report.breaches],
        "counts": report.counts,
    }


def _print_table(report: StressReport) -> None:
    figures = _figures(report)
    for name in ("sessions", "turns", "interrupts", "breaches", "seed"):
        print(f"{name:<18} {figures[name]:>10,}")
    print(f"{'turns a second':<18} {report.turns_per_second:>10,.1f}")
    print(f"{'interrupt p50':<18} {report.interrupt_p50_ms:>10,.1f} ms")
    print(f"{'interrupt p99':<18} {report.interrupt_p99_ms:>10,.1f} ms")
    print("reached:")
    for name, times in report.counts.items():
        print(f"  {name:<40} {times:>8,}")
