"""``llmsession cluster``: the hosts of a cluster, over the directory in PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import anyio
import typer

from llmsession.store import open_store

from ..common.service import CaFile, TokenFile, host_links
from ..common.stores import KeyFile, StoreAddress, store_key
from ..common.terminal import say, say_json
from .up import up

if TYPE_CHECKING:
    from llmsession.cluster.directory import Directory

__all__ = ["commands"]

ClusterName: TypeAlias = Annotated[
    str, typer.Option("--cluster", metavar="NAME", help="The name of the cluster.")
]

commands = typer.Typer(
    name="cluster",
    help="Run the hosts of a cluster, show them, drain one, and move sessions.",
    add_completion=False,
    no_args_is_help=True,
)
commands.command("up")(up)


@commands.command("status")
def show_status(
    *,
    store: StoreAddress,
    cluster: ClusterName = "default",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a host.")] = False,
) -> None:
    """Show how many hosts are wanted, and each host that runs: name, state, address, process."""

    async def show(directory: Directory) -> None:
        hosts = directory.view.hosts
        if not as_json:
            _say_numbers(directory)
        for host in hosts:
            process = directory.process_of(host)
            pid, machine = process.pid if process else 0, directory.machine_of(host)
            if as_json:
                say_json({**_fields(host), "pid": pid, "machine": machine})
            else:
                say(f"{host.name}  {host.state}  {host.address}  pid {pid} on {machine}")

    _with_directory(store, cluster, show)


@commands.command("scale")
def scale(
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="How many hosts are to run.")],
    *,
    store: StoreAddress,
    cluster: ClusterName = "default",
) -> None:
    """Let N hosts run: whoever ran ``cluster up`` starts or drains hosts until it is so.

    Prints how many are wanted, and how many run now.
    """
    _with_directory(store, cluster, lambda directory: _want(directory, count))


@commands.command("down")
def down(*, store: StoreAddress, cluster: ClusterName = "default") -> None:
    """End what ``cluster up`` runs: each host hands its open turns over or ends them first.

    The sessions stay in the store. Hosts that were started in another way go on.
    """
    _with_directory(store, cluster, lambda directory: _want(directory, 0))


@commands.command("drain")
def drain(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The name of the host.")],
    *,
    store: StoreAddress,
    cluster: ClusterName = "default",
) -> None:
    """Let a host hand all its sessions over.

    It goes on running without sessions; end it with SIGTERM. Clients follow their sessions.
    """

    async def act(directory: Directory) -> None:
        await directory.drain(host)
        takes_them = any(each.state == "up" for each in directory.view.hosts)
        stay = "" if takes_them else ": its sessions stay there until another host is up"
        say(f"{host}  draining{stay}")

    _with_directory(store, cluster, act)


@commands.command("move")
def move(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The id of the session.")],
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host that is to serve it.")],
    *,
    store: StoreAddress,
    cluster: ClusterName = "default",
    key_file: KeyFile = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Move one session to a host, at the end of its step. Its clients follow it."""

    async def act(directory: Directory) -> None:
        from llmsession.cluster.control import move_session

        opened = open_store(store, key=store_key(key_file))
        try:
            make = await host_links(token_file, ca)
            found = await move_session(directory, opened, session, host, make)
        finally:
            await opened.aclose()
        say(f"{session}  {found.name}  {found.address}")

    _with_directory(store, cluster, act)


async def _want(directory: Directory, count: int) -> None:
    await directory.set_wanted(count)
    _say_numbers(directory)


def _say_numbers(directory: Directory) -> None:
    wanted = "one for each core" if directory.wanted is None else directory.wanted
    say(f"wanted: {wanted}, running: {len(directory.view.hosts)}")


def _fields(host: object) -> dict[str, object]:
    import msgspec

    return dict(msgspec.to_builtins(host))


def _with_directory(store: str, name: str, act: Callable[[Directory], Awaitable[None]]) -> None:
    async def run() -> None:
        from llmsession.cluster.directory import Directory

        async with Directory(store, name) as directory:
            await act(directory)

    anyio.run(run)
