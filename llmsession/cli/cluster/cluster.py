"""``llmsession cluster``: the hosts of a cluster, over the directory in PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from llmsession.errors import InvalidInput
from llmsession.store import open_store

from ..common.service import CaFile, TokenFile, host_links
from ..common.stores import KeyFile, StoreAddress, store_key
from ..common.terminal import say, say_json

if TYPE_CHECKING:
    from llmsession.cluster.directory import Directory

__all__ = ["cluster"]

_NAMES = {"status": (), "drain": ("HOST",), "move": ("SESSION", "HOST")}
"""The actions, and what each of them is for."""


def cluster(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="status, drain or move.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="For drain: HOST. For move: SESSION HOST."),
    ] = None,
    *,
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The name of the cluster.")],
    store: StoreAddress,
    key_file: KeyFile = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With status: one JSON object a host.")
    ] = False,
) -> None:
    """Show the hosts of a cluster, let a host hand all its sessions over, or move one session.

    A host that drains goes on running without sessions; end it with SIGTERM. A session moves at the
    end of its step, and its clients follow it.
    """
    wanted = _NAMES.get(action)
    if wanted is None:
        raise InvalidInput(f"there is no action {action!r}; there are {', '.join(_NAMES)}")
    values = names or []
    if len(values) != len(wanted):
        usage = " ".join(("llmsession cluster", action, *wanted))
        raise InvalidInput(f"{action} takes {len(wanted)} names: {usage}")

    async def status(directory: Directory) -> None:
        for host in directory.view.hosts:
            if as_json:
                say_json(host)
            else:
                say(f"{host.name}  {host.state}  {host.address}")

    async def drain(directory: Directory) -> None:
        await directory.drain(values[0])

    async def move(directory: Directory) -> None:
        from llmsession.cluster.control import move_session

        opened = open_store(store, key=store_key(key_file))
        try:
            make = await host_links(token_file, ca)
            host = await move_session(directory, opened, values[0], values[1], make)
        finally:
            await opened.aclose()
        say(f"{values[0]}  {host.name}  {host.address}")

    acts = {"status": status, "drain": drain, "move": move}
    anyio.run(_with_directory, store, cluster, acts[action])


async def _with_directory(
    store: str, name: str, act: Callable[[Directory], Awaitable[None]]
) -> None:
    from llmsession.cluster.directory import Directory

    async with Directory(store, name) as directory:
        await act(directory)
