"""The hosts of one machine, as long as a program in the foreground runs: no Ray is needed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsession.errors import InvalidInput, StoreError
from llmsession.store.liveness import start_of, this_host

from .keeper import HostCommand, Keeper
from .supervisor import SupervisedHost, follow, node_of

if TYPE_CHECKING:
    from .directory import Directory

__all__ = ["run_local"]


async def run_local(
    directory: Directory,
    command: HostCommand,
    folder: Path,
    count: int,
    *,
    node: str,
    ready: Callable[[], object],
    ending: Callable[[], object],
    on_change: Callable[[SupervisedHost], None],
) -> None:
    """Keep *count* hosts running on this machine, or as many as somebody wants later, until SIGINT,
    SIGTERM or SIGHUP, or until none is wanted. Runs in the main thread. *ready* is called once the
    first *count* are up, and *ending* after the signal.

    Then all hosts hand their sessions over and end; a second signal kills them. Raises InvalidInput
    if one of the first ends before it is up, or if hosts of this cluster run here that this folder
    does not know, and StoreError.
    """
    stop, kill = _signals(ending)
    changed = asyncio.Event()
    first_are_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    up = set[str]()

    def note(host: SupervisedHost) -> None:
        changed.set()
        (up.add if host.state == "up" else up.discard)(host.name)
        if first_are_up.done():
            if first_are_up.exception() is not None:
                return  # the error says all
        else:
            if host.state == "waiting" and host.failures:
                log = folder / f"{host.name}.log"
                why = f"host {host.name} did not start: {host.why} (its log is {log})"
                first_are_up.set_exception(InvalidInput(why))
                return
            if len(up) >= count:
                first_are_up.set_result(None)
        on_change(host)

    async with Keeper(directory, command, folder, node=node, on_change=note) as keeper:
        await asyncio.to_thread(_check_names_are_free, directory, keeper, node)
        await directory.set_wanted(count)
        following = asyncio.create_task(follow(directory, keeper, changed))
        stopping = asyncio.create_task(stop.wait())
        try:
            await _first_of(first_are_up, following, stopping)
            if first_are_up.done():
                first_are_up.result()
                ready()
            await _first_of(following, stopping)
        finally:
            stopping.cancel()
            following.cancel()
            await asyncio.gather(stopping, following, return_exceptions=True)
            with suppress(StoreError):
                await directory.set_wanted(0)
            killing = asyncio.create_task(_kill_when(kill, keeper))
            await keeper.end()
            killing.cancel()


def _check_names_are_free(directory: Directory, keeper: Keeper, node: str) -> None:
    """Raises InvalidInput if a process that *keeper* does not keep is a host named after *node*: it
    would lose its name and its sessions, and go on without them. Reads files."""
    kept = {host.pid for host in keeper.hosts}
    for host in directory.view.hosts:
        owner = directory.process_of(host)
        if node_of(host.name) != node or owner is None or owner.host != this_host():
            continue
        if owner.pid not in kept and start_of(owner.pid) == owner.started:
            raise InvalidInput(
                f"host {host.name} of cluster {directory.name!r} runs here already, as pid"
                f" {owner.pid} at {host.address}: change how many run with `llmsession cluster"
                " scale`, or end them first, or use the folder that they were started in"
            )


def _signals(ending: Callable[[], object]) -> tuple[asyncio.Event, asyncio.Event]:
    """Set at the first signal that ends a program, after *ending* was called, and at the second."""
    loop, first, second = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def end() -> None:
        if first.is_set():
            second.set()
        else:
            ending()
            first.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    return first, second


async def _first_of(*waits: asyncio.Future[Any]) -> None:
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def _kill_when(kill: asyncio.Event, keeper: Keeper) -> None:
    await kill.wait()
    keeper.kill()
