"""``llmsession stress``: run many sessions at once and check the invariants, in real time or
simulated."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer

from llmsession.errors import InvalidInput
from llmsession.testing.recording.entries import Recording, encode_lines
from llmsession.testing.simulation.search import Failure, SimulationPlan, SimulationReport, simulate
from llmsession.testing.stress.run import StressPlan, StressReport, run_stress
from llmsession.testing.stress.service_clients import run_stress_at
from llmsession.transport.wire.addresses import parse_address

from ..common.confirm import confirm
from ..common.exit_codes import BROKEN_PROMISE
from ..common.options import option
from ..common.service import CaFile, ConnectTo, ServiceAt, TokenFile, model_at, service_at
from ..common.terminal import clear_line, complain, say, say_json
from ..common.violations import print_violations

__all__ = ["stress"]

CLIENTS = 4
"""Connections to a service. With four of them most sessions are used through at least two."""


def stress(
    *,
    simulated: Annotated[
        bool,
        typer.Option("--simulate", help="Run in virtual time, with injected faults; see above."),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="With --simulate: the number of schedules; 200.")
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(help="With --simulate: the hosts of a cluster; without, two processes."),
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(help="Sessions at once; 20, in a simulation 2.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(help="Sends to each session, bursts not counted; 50.")
    ] = None,
    interrupts: Annotated[
        int | None, typer.Option(help="Interrupts of each session, bursts not counted; 10.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Start nothing new after this many seconds; 20.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices. Only a simulation also seeds timing.")
    ] = 0,
    block: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Block the event loop now and then, for up to so long; not with --connect.",
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the recording to this file, as JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --connect: the model to use.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --connect: do not ask first.")] = False,
) -> None:
    """Run many sessions at once and check the invariants.

    Callers send, answer, steer, interrupt, compact and disconnect concurrently. The replies are
    generated; no model is called. Exits 1 if an invariant is violated.

    With --connect the sessions run on a service, its models answer, and what several clients saw is
    checked. The sessions are deleted afterwards.

    With --simulate a seed decides everything, also the order in which tasks run. Disk, clock,
    model, tools, clients and processes are delayed, fail, repeat and die. A schedule that violates
    an invariant is shrunk and printed. With --hosts the processes are hosts of a cluster, whose
    network, leases and views fail, too.
    """
    service = service_at(connect, token_file, ca)
    if service is None and (model is not None or yes):
        raise InvalidInput("--model and --yes need --connect; without it no model is called")
    if record is not None:
        with option("--record"):
            # Fail before the run if the file cannot be written. What it holds stays until the end.
            record.open("ab").close()
    fields = {"turns": turns, "interrupts": interrupts, "seconds": seconds, "block": block}
    options: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if simulated:
        unfit = [*options, *(["connect"] if service is not None else [])]
        if unfit:
            raise InvalidInput(f"--{unfit[0]} cannot be used with --simulate")
        sizes = {"seeds": seeds, "sessions": sessions, "hosts": hosts}
        options = {name: value for name, value in sizes.items() if value is not None}
        _simulate(SimulationPlan(seed=seed, **options), as_json=as_json, record=record)
        return
    if service is not None and block is not None:
        raise InvalidInput("--block cannot be used with --connect: the loop is not here")
    for name, value in (("seeds", seeds), ("hosts", hosts)):
        if value is not None:
            raise InvalidInput(f"--{name} needs --simulate")
    if sessions is not None:
        options["sessions"] = sessions
    try:
        plan = StressPlan(seed=seed, **options).checked()
    except InvalidInput as error:  # its message begins with the field, which has the option's name
        raise InvalidInput(f"--{error}") from error
    if service is None:
        report = anyio.run(run_stress, plan)
    else:
        with option(f"--connect {service.address}"):
            parse_address(service.address)
        if not yes:
            _confirm(service, plan)
        report = anyio.run(_stress_at, service, plan, model)
    _write(record, report.recording)
    _print_stress(report, as_json=as_json)


def _confirm(service: ServiceAt, plan: StressPlan) -> None:
    question = (
        f"the models of {service.address} will answer up to {plan.sessions * plan.turns:,} turns,"
        " which may be charged: continue?"
    )
    confirm(question, "nothing was sent; use --yes to skip this question")


def _print_stress(report: StressReport, *, as_json: bool) -> None:
    figures = _stress_figures(report)
    if as_json:
        say_json(figures)
    else:
        _print_figures(figures, "sessions", "turns", "interrupts", "violations", "seed")
        say(f"{'turns a second':<18} {report.turns_per_second:>10,.1f}")
        say(f"{'interrupt p50':<18} {report.interrupt_p50_ms:>10,.1f} ms")
        say(f"{'interrupt p99':<18} {report.interrupt_p99_ms:>10,.1f} ms")
        _print_counts(report.counts)
    if report.violations:
        print_violations(report.violations, of=f"with seed {report.plan.seed}")
        sys.exit(BROKEN_PROMISE)


async def _stress_at(service: ServiceAt, plan: StressPlan, model: str | None) -> StressReport:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(service.sessions())
            for _ in range(min(CLIENTS, plan.sessions))
        ]
        return await run_stress_at(clients, plan, model=model_at(clients[0], model))


def _stress_figures(report: StressReport) -> dict[str, Any]:
    return {
        "sessions": report.plan.sessions,
        "turns": report.turns,
        "interrupts": report.counts.get("interrupts", 0),
        "interrupt_p50_ms": report.interrupt_p50_ms,
        "interrupt_p99_ms": report.interrupt_p99_ms,
        "turns_per_second": round(report.turns_per_second, 1),
        "seconds": round(report.seconds, 3),
        "seed": report.plan.seed,
        "violations": [str(violation) for violation in report.violations],
        "counts": report.counts,
    }


def _simulate(plan: SimulationPlan, *, as_json: bool, record: Path | None) -> None:
    """Simulate, print the report, and exit with 1 if an invariant was violated. The recording that
    is written is the one of the shortest schedule that failed, else the one of the last."""
    report = simulate(plan, on_progress=_print_progress)
    if sys.stderr.isatty():
        clear_line()
    _write(record, (report.failures[0].run if report.failures else report.last).recording)
    figures = _simulation_figures(report)
    if as_json:
        say_json(figures)
    else:
        _print_figures(figures, "seeds", "turns", "violations", "seed")
        say(f"{'took':<18} {report.seconds:>10,.1f} s for {report.virtual_s:,.0f} virtual seconds")
        _print_counts(figures["reached"], width=48)
        if report.unreached:
            say("not reached, so not tested:")
            for name in report.unreached:
                say(f"  {name}")
    for failure in report.failures:
        _print_failure(failure)
    if report.failures:
        sys.exit(BROKEN_PROMISE)


def _print_progress(done: int) -> None:
    if sys.stderr.isatty():
        clear_line()
        complain(f"{done} schedules", end="")


def _simulation_figures(report: SimulationReport) -> dict[str, Any]:
    return {
        "seed": report.plan.seed,
        "seeds": report.runs,
        "turns": report.turns,
        "violations": [
            str(violation) for failure in report.failures for violation in failure.violations
        ],
        "seconds": round(report.seconds, 3),
        "virtual_seconds": round(report.virtual_s, 3),
        "reached": dict(sorted(report.reached.items())),
        "unreached": list(report.unreached),
        "failures": [
            {
                "seed": failure.schedule.seed,
                "steps": len(failure.schedule.steps),
                "shortest": len(failure.run.schedule.steps),
                "schedule": str(failure.run.schedule),
                "violations": [str(violation) for violation in failure.violations],
            }
            for failure in report.failures
        ],
    }


def _print_failure(failure: Failure) -> None:
    before, after = len(failure.schedule.steps), len(failure.run.schedule.steps)
    complain(
        f"seed {failure.schedule.seed} violates an invariant; shrunk from {before} steps to {after}"
        f" ({failure.tried} schedules tried):"
    )
    for line in str(failure.run.schedule).splitlines():
        complain(f"  {line}")
    print_violations(failure.violations, of="in that schedule")


def _write(record: Path | None, recording: Recording) -> None:
    if record is not None:
        with record.open("wb") as file:
            file.writelines(encode_lines(recording.entries))


def _print_figures(figures: Mapping[str, Any], *names: str) -> None:
    for name in names:
        figure = figures[name]
        say(f"{name:<18} {len(figure) if isinstance(figure, list) else figure:>10,}")


def _print_counts(counts: Mapping[str, int], *, width: int = 40) -> None:
    say("reached:")
    for name, times in counts.items():
        say(f"  {name:<{width}} {times:>8,}")
