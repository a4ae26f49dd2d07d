"""Stores that the commands are tried on, and running a command."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import msgspec
import pytest

from llmsession import SessionConfig, SessionManager, Store, Tool
from llmsession.cli import main
from llmsession.store import Owner, SqliteStore, this_process
from llmsession.store.liveness import this_host
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted
from llmsession.turns.request import Request, StepTag

__all__ = ["DEAD", "Ran", "Run", "ask", "held_by", "make_store", "run"]

T = TypeVar("T")
NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
DEAD = Owner("gone", os.getpid(), "0", this_host())
"""Of a process that had our pid before us."""


class Ran(NamedTuple):
    """What a command left with, and what it said."""

    code: int
    out: str
    err: str

    @property
    def figures(self) -> list[dict[str, Any]]:
        """The JSON object on each line of the output."""
        return [msgspec.json.decode(line) for line in self.out.splitlines()]

    @property
    def refusal(self) -> str:
        """The one line on stderr of a command that refused to do anything."""
        assert (self.code, self.out) == (2, ""), self
        (line,) = self.err.splitlines()
        assert line.startswith("llmsession: ")
        return line


Run: TypeAlias = Callable[..., Ran]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    """Run ``llmsession`` with *arguments*."""
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = int(left.code or 0)
    return Ran(code, *capsys.readouterr())


def _reply(request: Request, tag: StepTag) -> Scripted:
    if tag.turn == 1 and tag.step == 1:
        return say("let me look") + call("read", {"path": "notes.txt"}, id=f"c{tag.turn}")
    return say(f"answer {tag.turn} in [bold]words[/bold]")


async def _read(path: str) -> str:
    await anyio.lowlevel.checkpoint()
    return "a line of notes\n" * 50


def make_store(path: Path, *, key: bytes | None = None) -> None:
    """A SQLite store with ``alpha`` (two turns, the first with a tool), its fork ``alpha-fork``,
    ``beta``, which is of 2001, and ``half-made``, which was never finished. Nobody holds any."""
    tool = Tool(name="read", input_schema={"type": "object"}, run=_read)
    times = {"now": NOW}

    async def make() -> None:
        store = SqliteStore(path, key=key)
        provider = ScriptedProvider(_reply)
        clock = lambda: times["now"]  # noqa: E731  # a name for it would say no more
        async with SessionManager(provider=provider, store=store, clock=clock) as manager:
            config = SessionConfig(model="m", tools=(tool,))
            labels = {"team": "red", "user": "[ann]"}
            alpha = await manager.create(config, session_id="alpha", labels=labels)
            for said in ("what is in the notes?", "and now?"):
                await (await alpha.send(said)).text()
            await alpha.fork(session_id="alpha-fork", labels={"team": "red"})
            times["now"] = 1_000_000_000.0
            await manager.create(config, session_id="beta", labels={"team": "blue"})
            await store.release(await store.create("half-made", DEAD))

    anyio.run(make)


def ask(path: Path, work: Callable[[Store], Awaitable[T]], *, key: bytes | None = None) -> T:
    """What *work* returns of the store at *path*."""

    async def act() -> T:
        store = SqliteStore(path, key=key)
        try:
            return await work(store)
        finally:
            await store.aclose()

    return anyio.run(act)


def held_by(path: Path, session: str, owner: Owner | None = None) -> None:
    """From now on *session* is held by *owner*, or by us."""
    ask(path, lambda store: store.acquire(session, owner or this_process("us"), takeover=True))
