"""What the tour shows: a live picture of hosts and sessions, and the table at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llmsession.cluster.directory import Directory
from llmsession.cluster.overview import Overview
from llmsession.cluster.placement import host_of
from llmsession.transport.wire.messages import HostEntry

from .talks import Gaps, Talk

__all__ = ["COLOURS", "Picture", "Step", "steps_table"]

COLOURS = ("green", "yellow", "magenta", "cyan", "blue")
POLL_S = 0.2
FRAMES_A_SECOND = 10
NARROWEST = 20

Step = tuple[str, Gaps | None, Gaps | None]
"""What was done, the silences of the sessions that had to move, and those of the others."""


class Picture:
    """Which host serves which session, as the hosts say, read a few times a second."""

    def __init__(
        self, console: Console, directory: Directory, overview: Overview, talks: Sequence[Talk]
    ) -> None:
        self._console = console
        self._directory = directory
        self._overview = overview
        self._talks = talks
        self.states: dict[str, str] = {}
        """By host: its state, also of hosts that are gone."""
        self.served: dict[str, str] = {}
        """By session: the host that serves it now, or did before its host ended."""
        self.changed = asyncio.Event()

    async def look(self) -> None:
        """Ask the hosts, for ever."""
        while True:
            hosts = [
                HostEntry(host.name, host.address, host.state)
                for host in self._directory.view.hosts
            ]
            answers = await self._overview.read(hosts, limit=1000)
            names = {host.name for host in hosts}
            for name in self.states.keys() - names:
                self.states[name] = "gone"
            for answer in answers:
                self.states[answer.host.name] = answer.host.state
                for stats in answer.snapshot.sessions if answer.snapshot else ():
                    self.served[stats.session] = answer.host.name
            self.changed.set()
            self.changed = asyncio.Event()
            await asyncio.sleep(POLL_S)

    async def wait_for(self, *states: str, of: str) -> None:
        """Wait until the host *of* is in one of *states*."""
        while self.states.get(of) not in states:
            await self.changed.wait()

    async def wait_until_empty(self, host: str) -> None:
        """Wait until no session is served by *host*."""
        while host in self.served.values():
            await self.changed.wait()

    async def wait_until_served(self) -> None:
        """Wait until every session is served by some host."""
        while len(self.served) < len(self._talks):
            await self.changed.wait()

    async def wait_until_shared(self, host: str) -> None:
        """Wait until *host* serves the sessions that are placed on it."""
        placed = {
            talk.name
            for talk in self._talks
            if getattr(host_of(self._directory.view, talk.name), "name", None) == host
        }
        while any(self.served[session] != host for session in placed):
            await self.changed.wait()

    async def show(self) -> None:
        """Draw the picture again and again, at the lower end of a terminal. Nothing elsewhere."""
        if not self._console.is_terminal:
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self.drawn(), refresh=True)
                await asyncio.sleep(1 / FRAMES_A_SECOND)

    def drawn(self) -> RenderableType:
        """The hosts with the number of their sessions, and the end of each session's reply."""
        colours = dict(zip(sorted(self.states), COLOURS * len(self.states), strict=False))
        return Group(self.hosts_table(colours), self._sessions_table(colours))

    def hosts_table(self, colours: Mapping[str, str]) -> Table:
        """A line for each host, with a mark for each of its sessions."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for title in ("host", "state", "serves", ""):
            table.add_column(title, no_wrap=True, justify="right" if title == "serves" else "left")
        for name in sorted(self.states):
            count = sum(host == name for host in self.served.values())
            colour = colours.get(name, "white")
            state = self.states[name]
            style = {"gone": "dim", "joining": "cyan", "draining": "yellow"}.get(state, "")
            marks = Text("●" * count, style=colour if state != "gone" else "red")
            table.add_row(
                Text(name, style=f"bold {colour}"), Text(state, style=style), str(count), marks
            )
        return table

    def _sessions_table(self, colours: Mapping[str, str]) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(3):
            table.add_column(no_wrap=True)
        width = max(NARROWEST, self._console.width - 16)
        for talk in self._talks:
            host = self.served.get(talk.name, "")
            line = talk.tail.replace("\n", " ")[-width:]
            table.add_row(
                Text(talk.name),
                Text(host, style=f"bold {colours.get(host, 'white')}"),
                Text(line, style="dim"),
            )
        return table


def steps_table(steps: Sequence[Step]) -> Table:
    """What was done, and how long sessions were silent meanwhile."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", no_wrap=True)
    for title in ("moved", "their silence", "the others'"):
        table.add_column(title, justify="right")
    for what, moved, others in steps:
        table.add_row(
            what, str(moved.sessions) if moved else "0", _silence(moved), _silence(others)
        )
    return table


def _silence(gaps: Gaps | None) -> str:
    return "-" if gaps is None else f"{gaps.median_ms:,.0f} ms (longest {gaps.max_ms:,.0f})"
