"""Each host watches a few others, and reports those that are silent: see ``ladder``.

A host is pinged over the wire that its clients use, because what counts is whether its event loop
runs: a process that was stopped, or a machine that froze, still accepts connections. A service
answers a ping before the hello, so no token is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from llmsession.errors import SessionError, StoreError
from llmsession.session.core.session_log import default_logger
from llmsession.transport.connecting import dial_of
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.framing import decode_from_server, encode

from .ladder import PROBES, Silence, watched_by, why_dead
from .placement import Host, View

if TYPE_CHECKING:
    from .directory import Directory

__all__ = ["Observer", "Ping", "observing", "ping"]

Ping: TypeAlias = Callable[[str, bool], Awaitable[bool]]
"""See ``ping``."""
SELDOM = 10
"""A host that has never answered is asked only every so many rounds."""


class Observer:
    """Watches hosts for the host *name*, which joined in *directory*. *ping* is a test's own."""

    def __init__(
        self, directory: Directory, name: str, *, ping: Ping | None = None, log: Any | None = None
    ) -> None:
        self._directory = directory
        self._name = name
        self._ping = _ping if ping is None else ping
        self._log = log if log is not None else default_logger()
        self._silence = Silence(directory.silent_s)
        self._with_tls: dict[str, bool] = {}
        """By incarnation: is it asked with TLS?"""
        self._reported: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds = 0
        directory.watch(self._view_changed)

    def _view_changed(self, before: View, after: View) -> None:
        # At once: it may be back before the next look.
        for host in before.hosts:
            if after.by_incarnation(host.incarnation) is None:
                self._silence.forget(host.incarnation)

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except StoreError:
                    pass  # the directory says that it is unreachable; without it nobody is dead
                except Exception as error:  # a bug of ours must not end the watch
                    self._log.error("cluster.follow_failed", exc_info=error)
                await asyncio.sleep(self._directory.silent_s / PROBES)
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self) -> None:
        watched = {host.incarnation: host for host in watched_by(self._directory.view, self._name)}
        self._with_tls = {key: tls for key, tls in self._with_tls.items() if key in watched}
        self._reported &= watched.keys()
        for host in watched.values():
            if self._silence.has_answered(host.incarnation) or self._rounds % SELDOM == 0:
                self._start(host)
        self._rounds += 1
        silent = self._silence.look(asyncio.get_running_loop().time(), watched)
        for incarnation in self._reported - set(silent):
            self._reported.discard(incarnation)
            await self._directory.withdraw(incarnation)
        for incarnation in silent:
            self._reported.add(incarnation)
            evidence = await self._directory.suspect(incarnation)
            why = None if evidence is None else why_dead(evidence)
            if why is not None:
                self._silence.forget(incarnation)
                await self._directory.declare_dead(incarnation, why)
        await self._directory.remove_ended()

    def _start(self, host: Host) -> None:
        # A new one each time, so that one connection that hangs is not taken for a silent host.
        task = asyncio.get_running_loop().create_task(self._ask(host))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, host: Host) -> None:
        key = host.incarnation
        tls = self._with_tls.get(key, False)
        answered = False
        with contextlib.suppress(OSError, SessionError):  # OSError: also a TimeoutError
            async with asyncio.timeout(self._directory.silent_s):
                answered = await self._ping(host.address, tls)
        if answered:
            self._with_tls[key] = tls
            self._silence.answered(key, asyncio.get_running_loop().time())
        elif not self._silence.has_answered(key):
            self._with_tls[key] = not tls


async def ping(address: str, tls: bool) -> bool:
    """Did the service at *address* answer a ping? *tls*: over TLS, where the address is a TCP one.

    Nothing is sent or believed that a certificate would have to protect. Raises OSError and
    SessionError. Waits until it is cancelled.
    """
    where = parse_address(address)
    context = _any_certificate() if tls and where.scheme == "tcp" else None
    channel = await dial_of(where, context)()
    try:
        channel.send(encode(w.Ping()))
        while frames := await channel.receive():
            if any(isinstance(decode_from_server(frame), w.Pong) for frame in frames):
                return True
        return False
    finally:
        await channel.aclose()


_ping = ping


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def observing(directory: Directory, name: str, *, log: Any | None) -> AsyncIterator[None]:
    """Watch other hosts for the host *name* meanwhile."""
    running = asyncio.create_task(Observer(directory, name, log=log).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
