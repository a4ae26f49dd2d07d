"""``llmsession story``: what a session does, told in under a minute. Recorded replies, no model.

A service is started as a process of its own, the story is told through clients of it, and in the
middle it is killed. Nothing is left behind, also on Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated

import anyio
import typer
from rich.console import Console

from llmsession.errors import InvalidInput, TranscriptError
from llmsession.testing.local_service import ServedProgram, free_port, serving
from llmsession.transcripts import Conversation, read
from llmsession.transport import RemoteManager, connect

from .commands.replay import drive_files, print_table
from .common.exit_codes import BROKEN_PROMISE
from .story_killed import tell_kill
from .story_recordings import first_turn, largest_recallable, write_recordings
from .story_told import tell_compaction, tell_interrupt

__all__ = ["story"]

LONGEST_FOLDER = 80
"""Characters: the path of a Unix socket has room for about a hundred."""


def story(
    # Typer would refuse the whole call for one file that may not be read.
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Recorded conversations.", readable=False),
    ],
) -> None:
    """Tell what a session does, on recorded conversations. No model, no key, no network.

    Exit code 1: a promise was broken; 2: a file cannot be told.
    """
    conversations = [_one(path) for path in files]
    longest = max(conversations, key=lambda conversation: len(first_turn(conversation)))
    largest_recallable(first_turn(longest))
    console = Console(highlight=False)
    console.rule("[bold]llmsession: recorded replies, no model")
    whole = anyio.run(_tell, console, longest)
    console.print("\n[bold]6. The recorded conversations, replayed through real sessions[/]")
    replayed = list(drive_files(files))
    print_table(replayed, console)
    console.print(
        "\nNext: [bold].venv/bin/llmsession replay --interrupt-every 5 --seed 1[/] FILE..."
        "\n      [bold].venv/bin/llmsession stress --seconds 5[/]"
        "\n      README.md, then ARCHITECTURE.md",
        soft_wrap=True,
    )
    if not whole or any(found.report.is_broken for found in replayed):
        raise typer.Exit(BROKEN_PROMISE)


def _one(path: Path) -> Conversation:
    try:
        found = read(path.read_bytes())
    except TranscriptError as error:
        raise InvalidInput(f"{path}: {error}") from error
    if not found or not found[0].messages:
        raise InvalidInput(f"{path}: no conversation in it")
    return found[0]


async def _tell(console: Console, conversation: Conversation) -> bool:
    async with _served(console, conversation) as service, AsyncExitStack() as stack:
        ways: dict[str, RemoteManager] = {}
        for address in service.addresses:
            way = "gRPC" if address.startswith("grpc:") else "the Unix socket"
            ways[way] = await stack.enter_async_context(connect(address))
        newest = list(ways.values())[-1]
        await tell_interrupt(console, newest)
        await tell_compaction(console, newest, first_turn(conversation))
        return await tell_kill(console, service, ways)


@asynccontextmanager
async def _served(console: Console, conversation: Conversation) -> AsyncIterator[ServedProgram]:
    """The service, in a folder that is gone afterwards."""
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="llmsession-", dir=base if len(base) <= LONGEST_FOLDER else "/tmp"
    ) as folder:
        config = write_recordings(Path(folder), conversation)
        listen = ["--listen", f"unix:{folder}/story.sock", *_grpc()]
        store = ["--store", f"sqlite:{folder}/story.db"]
        started = anyio.current_time()
        async with serving(
            "--config", str(config), *store, *listen, "--grace", "0", "--log-level", "error",
            folder=folder,
        ) as service:  # fmt: skip
            took_s = anyio.current_time() - started
            where = _told(service.addresses)
            console.print(
                f"a service of its own process: pid {service.pid}, ready in {took_s:.1f} s,"
                f" {where}",
                soft_wrap=True,
            )
            yield service


def _told(addresses: Sequence[str]) -> str:
    return " and ".join("a Unix socket" if each.startswith("unix:") else each for each in addresses)


def _grpc() -> list[str]:
    """The option for gRPC, where the extra is installed; a port that it will have again."""
    if importlib.util.find_spec("grpc") is None:
        return []
    return ["--grpc", f"127.0.0.1:{free_port()}"]
