"""What ``make run-cluster`` shows: three hosts, of which one is killed and one drained, and a new
one joins, while sessions stream.

PostgreSQL and each host run in processes of their own, the clients in this one. Nothing is left
behind, not even after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from llmsession.cli.app import run
from llmsession.cli.common.exit_codes import BROKEN_PROMISE
from llmsession.cluster import connect_cluster
from llmsession.cluster.clients import link_maker
from llmsession.cluster.directory import Directory
from llmsession.cluster.overview import Overview
from llmsession.errors import InvalidInput
from llmsession.testing.local_service import ServedProgram, serving
from llmsession.transport.interface import ManagerInterface

from .screen import Picture, Step, steps_table
from .talks import Talk, gaps_of

__all__ = ["main"]

CLUSTER = "tour"
NAMES = ("ada", "alan", "barbara", "donald", "edsger", "frances", "grace", "john", "ken", "leslie",
         "margaret", "tony")  # fmt: skip
RECORDING = Path(__file__).parents[1] / "recordings" / "talk.jsonl"
PACE_S = 0.05
"""Seconds between two deltas of a reply."""
SHARE_S, QUICK_SHARE_S = 10.0, 2.0
"""The most seconds that a new host is given to get its share: a session moves when a reply ends."""
LOOK_S = 3.0
"""Seconds to look at the picture before each step."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def tour(
    quick: Annotated[bool, typer.Option("--quick", help="Half the sessions, no pauses.")] = False,
) -> None:
    """Show what a cluster does when hosts die, leave and come. Recorded replies, no model, offline.

    Exits with 1 if a turn was lost, and with 2 if there is no PostgreSQL to run.
    """
    try:
        from tests.store.postgres.server import NoServer, running_server
    except ImportError as error:
        raise InvalidInput(f"the tour needs what make setup installs: {error}") from error
    console = Console(highlight=False)
    console.rule("[bold]llmsession: a cluster of three hosts, recorded replies, no model")
    try:
        with running_server() as postgres:
            console.print("a PostgreSQL of its own, which says who serves which session")
            whole = anyio.run(_tour, console, postgres.dsn, quick)
    except NoServer as error:
        why = str(error).strip().splitlines()[-1]
        raise InvalidInput(f"there is no PostgreSQL that can be run here: {why}") from error
    if not whole:
        raise typer.Exit(BROKEN_PROMISE)


async def _tour(console: Console, dsn: str, quick: bool) -> bool:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llms-", dir="/tmp"))
        hosts = _Hosts(stack, Path(folder), dsn)
        began = time.monotonic()
        await asyncio.gather(*(hosts.start(name) for name in "abc"))
        pids = ", ".join(f"{name} (pid {hosts.programs[name].pid})" for name in "abc")
        console.print(f"three hosts: {pids}, ready in {time.monotonic() - began:.1f} s")
        directory = await stack.enter_async_context(Directory(dsn, CLUSTER))
        overview = Overview(link_maker())
        stack.push_async_callback(overview.aclose)
        talks = [Talk(name) for name in NAMES[:: 2 if quick else 1]]
        picture = Picture(console, directory, overview, talks)
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(picture.show())
            looking = [group.create_task(picture.look())]
            for host in "abc":
                await picture.wait_for("up", of=host)
            address = hosts.programs["a"].addresses[0]  # the host says where the others are
            sessions = await stack.enter_async_context(connect_cluster([address]))
            for talk in talks:
                await talk.begin(sessions)
                looking.append(group.create_task(talk.follow()))
            await picture.wait_until_served()
            talking = [group.create_task(talk.talk()) for talk in talks]
            console.print(f"{len(talks)} sessions, a client each, which sends without a break")
            steps = await _Steps(console, picture, talks, quick).take(hosts)
            for talk in talks:
                talk.end()
            await asyncio.gather(*talking)
            showing.cancel()
            whole = await _report(console, steps, sessions, talks)
            for task in looking:
                task.cancel()
        return whole


class _Hosts:
    """The hosts, each a process of ``llmsession serve --cluster``."""

    def __init__(self, stack: AsyncExitStack, folder: Path, dsn: str) -> None:
        self._stack = stack
        self._folder = folder
        self._dsn = dsn
        self.programs: dict[str, ServedProgram] = {}

    async def start(self, name: str) -> None:
        """Start the host *name*, and wait until it serves."""
        folder = self._folder / name
        folder.mkdir()
        self.programs[name] = await self._stack.enter_async_context(
            serving(
                *("--cluster", CLUSTER, "--host-name", name, "--store", self._dsn),
                *("--listen", f"unix:{folder}/s", "--grace", "5"),
                *("--replay", str(RECORDING), "--replay-delay", str(PACE_S)),
                folder=folder,
                environ={"LLMSESSION_SERVE_LOG_LEVEL": "error"},
            )
        )


class _Steps:
    """What is done to the cluster, and how long sessions are silent meanwhile."""

    def __init__(
        self, console: Console, picture: Picture, talks: Sequence[Talk], quick: bool
    ) -> None:
        self._console = console
        self._picture = picture
        self._talks = talks
        self._look_s = 0.0 if quick else LOOK_S
        self._share_s = QUICK_SHARE_S if quick else SHARE_S
        self._steps: list[Step] = []

    async def take(self, hosts: _Hosts) -> Sequence[Step]:
        """Kill b, drain c, add d."""
        picture = self._picture

        async def nothing() -> None:
            await asyncio.sleep(self._look_s)

        async def kill() -> None:
            await hosts.programs["b"].kill()
            await picture.wait_for("gone", of="b")
            await picture.wait_until_empty("b")

        async def drain() -> None:
            await hosts.programs["c"].terminate()
            await picture.wait_for("gone", of="c")
            await picture.wait_until_empty("c")

        async def add() -> None:
            await hosts.start("d")
            await picture.wait_for("up", of="d")
            # A session that reached d before d knew of its own share went back, and stays there.
            with anyio.move_on_after(self._share_s):
                await picture.wait_until_shared("d")

        pid = hosts.programs["b"].pid
        await self._step("nothing happens", "nothing happens: replies stream", nothing)
        await self._step("kill -9 b", f"[bold red]kill -9 {pid}[/], which is host b", kill)
        await self._step("drain c", "[bold yellow]host c drains[/] and ends", drain)
        await self._step("add d", "[bold green]host d joins[/], and gets its share", add)
        return self._steps

    async def _step(self, title: str, told: str, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(self._look_s)
        self._console.print(f"\n[bold]{len(self._steps) + 1}.[/] {told}")
        before, began = dict(self._picture.served), time.monotonic()
        await act()
        acted = time.monotonic()
        while any(talk.arrivals[-1:] < [acted] for talk in self._talks):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # until each session has gone on
        ended, after = time.monotonic(), self._picture.served
        moved = [talk for talk in self._talks if before.get(talk.name) != after.get(talk.name)]
        stayed = [talk for talk in self._talks if talk not in moved]
        step = (title, gaps_of(moved, began, ended), gaps_of(stayed, began, ended))
        self._steps.append(step)
        if step[1] is not None:
            self._console.print(
                f"   {step[1].sessions} sessions moved, and were silent for"
                f" {step[1].median_ms:,.0f} ms, at most {step[1].max_ms:,.0f} ms"
            )
        if not self._console.is_terminal:
            self._console.print(self._picture.drawn())


async def _report(
    console: Console, steps: Sequence[Step], sessions: ManagerInterface, talks: Sequence[Talk]
) -> bool:
    """Print what each step cost, and what became of the turns. Returns whether all is there."""
    verdicts = [await talk.verdict(sessions) for talk in talks]
    console.print("\n[bold]How long sessions were silent[/], in the middle and at most")
    console.print(steps_table(steps))
    sent = sum(verdict.sent for verdict in verdicts)
    committed = sum(verdict.committed for verdict in verdicts)
    resumed = sum(verdict.resumed for verdict in verdicts)
    lost = sum(verdict.lost for verdict in verdicts)
    twice = sum(verdict.twice for verdict in verdicts)
    same = sum(verdict.same for verdict in verdicts)
    console.print(
        f"{sent} turns were sent, {committed} are committed ({resumed} resumed after the kill):"
        f" [bold]{lost} lost, {twice} twice[/]"
    )
    console.print(
        f"{same} of {len(talks)} subscribers saw every durable event of the log once and in order"
    )
    return lost == twice == 0 and same == len(talks)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tour and exit."""
    run(app, "cluster", arguments)


if __name__ == "__main__":
    main()
