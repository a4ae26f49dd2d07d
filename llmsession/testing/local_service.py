"""``llmsession serve`` in a process of its own, to be used, killed and started again."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from llmsession.errors import InvalidInput

__all__ = ["ServedProgram", "free_port", "serving"]

START_S = 60.0
"""How long a service may take to be ready, on a machine that has much to do."""
END_S = 30.0
_LISTENING = "listening at "


class ServedProgram:
    """One service and its processes, one after the other. Made by ``serving``."""

    def __init__(
        self, arguments: tuple[str, ...], folder: Path, environ: Mapping[str, str], log: Path
    ) -> None:
        self._command = [sys.executable, "-m", "llmsession", "serve", *arguments]
        self._folder = folder
        self._environ = dict(environ)
        self._running: Process | None = None
        self.log = log
        """The file that all of its logs are in."""
        self.addresses: tuple[str, ...] = ()
        """Where it listens, with the ports that it got, in the order in which they were asked
        for: sockets, gRPC, health. A port 0 is another one after each start."""

    @property
    def pid(self) -> int:
        """The id of the process that runs. Raises InvalidInput where none does."""
        return self._process().pid

    def address(self, scheme: str) -> str:
        """The first address of *scheme*: ``unix``, ``tcp``, ``grpc``, or ``http`` (health)."""
        return next(listed for listed in self.addresses if listed.partition(":")[0] == scheme)

    async def start(self) -> None:
        """Start it, and wait until it is ready. Raises InvalidInput with what it said, where it
        ends before that; TimeoutError after a minute."""
        if self._running is not None:
            raise InvalidInput("this service runs already")
        with _opened(self.log) as log:
            self._running = await anyio.open_process(
                self._command, cwd=self._folder, env=self._environ, stdin=None, stderr=log
            )
        try:
            with anyio.fail_after(START_S):
                self.addresses = await _addresses(self._running)
        except anyio.IncompleteRead as error:
            code = await self.wait()
            lines = (await anyio.Path(self.log).read_text("utf-8")).strip().splitlines()
            message = lines[-1] if lines else "it said nothing"
            raise InvalidInput(f"the service ended with {code}: {message}") from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise

    def tell(self, which: signal.Signals) -> None:
        """Send it a signal; nothing where it has ended by itself meanwhile."""
        running = self._process()
        with suppress(ProcessLookupError):
            running.send_signal(which)

    async def wait(self) -> int:
        """Its exit code, once it has ended; -9 after SIGKILL. Cancellable."""
        process = self._process()
        code = await process.wait()
        await process.aclose()
        self._running = None
        return code

    async def kill(self) -> None:
        """End it as a power failure would, and wait for that."""
        self.tell(signal.SIGKILL)
        await self.wait()

    async def terminate(self) -> int:
        """Ask it to end in order; its exit code."""
        self.tell(signal.SIGTERM)
        return await self.wait()

    async def end(self) -> None:
        """``terminate`` if it runs; kill it where that takes longer than half a minute."""
        if self._running is None:
            return
        with anyio.move_on_after(END_S):
            await self.terminate()
        if self._running is not None:
            await self.kill()

    def _process(self) -> Process:
        if self._running is None:
            raise InvalidInput("this service does not run")
        return self._running


def _opened(path: Path) -> IO[bytes]:
    return path.open("ab")


async def _addresses(process: Process) -> tuple[str, ...]:
    assert process.stdout is not None
    lines, listening_on = BufferedByteReceiveStream(process.stdout), list[str]()
    while (line := (await lines.receive_until(b"\n", 4096)).decode()) != "ready":
        if line.startswith(_LISTENING):
            listening_on.append(line.removeprefix(_LISTENING))
    return tuple(listening_on)


@asynccontextmanager
async def serving(
    *arguments: str, folder: str | Path, environ: Mapping[str, str] | None = None
) -> AsyncIterator[ServedProgram]:
    """``llmsession serve`` with *arguments*, run in *folder*, ready when the body begins, and
    ended when it is left. *environ* is added to this process's own, without its keys of providers
    and settings. Raises as ``ServedProgram.start``.
    """
    folder = Path(folder)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LLMSESSION_SERVE_") and not name.endswith("_API_KEY")
    }
    program = ServedProgram(
        arguments, folder, environment | dict(environ or {}), folder / "service.log"
    )
    await program.start()
    try:
        yield program
    finally:
        with anyio.CancelScope(shield=True):
            await program.end()


def free_port() -> int:
    """A port of loopback that nobody listens at now, to be asked for again after a restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
