"""What ``make run`` shows: what a session does, in under a minute, with recorded replies.

A service is started in a process of its own. The steps are shown through clients of it, and in the
last step but one the service is killed. Nothing is left behind, not even after Ctrl-C.
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

from llmsession.cli.app import run
from llmsession.cli.commands.replay import drive_files, print_table
from llmsession.cli.common.exit_codes import BROKEN_PROMISE
from llmsession.errors import InvalidInput, TranscriptError
from llmsession.testing.local_service import ServedProgram, free_port, serving
from llmsession.transcripts import Conversation, read
from llmsession.transport import RemoteManager, connect

from .interrupt_and_compaction import show_compaction, show_interrupt
from .kill import show_kill
from .recordings import first_turn, largest_recallable, write_recordings

__all__ = ["main"]

MAX_FOLDER_CHARS = 80
"""The longest path of a temporary folder: the path of a Unix socket has about 100 characters."""


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def story(
    # Typer would report an unreadable file in its own format; ``_one`` reports it in one line.
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Recorded conversations.", readable=False),
    ],
) -> None:
    """Show what a session does, on recorded conversations. No model, no key, no network.

    Exits with 1 if a replay fails a check, and with 2 if a file cannot be used.
    """
    conversations = [_one(path) for path in files]
    longest = max(conversations, key=lambda conversation: len(first_turn(conversation)))
    largest_recallable(first_turn(longest))
    console = Console(highlight=False)
    console.rule("[bold]llmsession: recorded replies, no model")
    whole = anyio.run(_show, console, longest)
    console.print("\n[bold]6. The recorded conversations, replayed through real sessions[/]")
    replayed = list(drive_files(files))
    print_table(replayed, console)
    console.print(
        "\nNext: [bold].venv/bin/llmsession replay --interrupt-every 5 --seed 1[/] FILE..."
        "\n      [bold].venv/bin/llmsession stress --seconds 5[/]"
        "\n      README.md, then ARCHITECTURE.md",
        soft_wrap=True,
    )
    if not whole or any(file.report.is_broken for file in replayed):
        raise typer.Exit(BROKEN_PROMISE)


def _one(path: Path) -> Conversation:
    try:
        conversations = read(path.read_bytes())
    except TranscriptError as error:
        raise InvalidInput(f"{path}: {error}") from error
    if not conversations or not conversations[0].messages:
        raise InvalidInput(f"{path}: the file contains no conversation")
    return conversations[0]


async def _show(console: Console, conversation: Conversation) -> bool:
    async with _served(console, conversation) as service, AsyncExitStack() as stack:
        ways: dict[str, RemoteManager] = {}
        for address in service.addresses:
            way = "gRPC" if address.startswith("grpc:") else "the Unix socket"
            ways[way] = await stack.enter_async_context(connect(address))
        newest = list(ways.values())[-1]
        await show_interrupt(console, newest)
        await show_compaction(console, newest, first_turn(conversation))
        return await show_kill(console, service, ways)


@asynccontextmanager
async def _served(console: Console, conversation: Conversation) -> AsyncIterator[ServedProgram]:
    """Run the service, with its files in a folder that is removed afterwards."""
    base = tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="llmsession-", dir=base if len(base) <= MAX_FOLDER_CHARS else "/tmp"
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
            where = _listed(service.addresses)
            console.print(
                f"a service in its own process: pid {service.pid}, ready in {took_s:.1f} s,"
                f" listening at {where}",
                soft_wrap=True,
            )
            yield service


def _listed(addresses: Sequence[str]) -> str:
    return " and ".join(
        "a Unix socket" if address.startswith("unix:") else address for address in addresses
    )


def _grpc() -> list[str]:
    """The option for gRPC if the extra is installed. The port is fixed, because the service has to
    have the same address after its restart."""
    if importlib.util.find_spec("grpc") is None:
        return []
    return ["--grpc", f"127.0.0.1:{free_port()}"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tour and exit."""
    run(app, "story", arguments)


if __name__ == "__main__":
    main()
