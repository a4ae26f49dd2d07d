"""Runs ``llmsession serve`` in its own process, so that a test can use, kill and restart it."""

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

START_S = 150.0
"""How long a service may take to become ready, on a busy machine."""
END_S = 60.0
_LISTENING = "listening at "


class ServedProgram:
    """A service that can be restarted. Each start is a new process. Created by ``serving``."""

    def __init__(
        self, arguments: tuple[str, ...], folder: Path, environ: Mapping[str, str], log: Path
    ) -> None:
        self._command = [sys.executable, "-m", "llmsession", "serve", *arguments]
        self._folder = folder
        self._environ = dict(environ)
        self._running: Process | None = None
        self.log = log
        """The log file of all its processes."""
        self.addresses: tuple[str, ...] = ()
        """The addresses at which it listens, with the actual ports: first sockets, then gRPC, then
        health. A port 0 becomes another port after each start."""

    @property
    def pid(self) -> int:
        """The id of the running process. Raises InvalidInput if none runs."""
        return self._process().pid

    def address(self, scheme: str) -> str:
        """The first address with *scheme*: ``unix``, ``tcp``, ``grpc``, or ``http`` (health)."""
        return next(listed for listed in self.addresses if listed.partition(":")[0] == scheme)

    async def start(self) -> None:
        """Start the service, and wait until it is ready. Raises InvalidInput with the last line of
        the log if the service ends before that, and TimeoutError after 150 s."""
        if self._running is not None:
            raise InvalidInput("this service is already running")
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
            message = lines[-1] if lines else "its log is empty"
            raise InvalidInput(f"the service ended with exit code {code}: {message}") from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.kill()
            raise

    def tell(self, which: signal.Signals) -> None:
        """Send the signal *which* to the process. Does nothing if the process has just ended."""
        running = self._process()
        with suppress(ProcessLookupError):
            running.send_signal(which)

    async def wait(self) -> int:
        """Wait for the process to end, and return its exit code. It is -9 after SIGKILL.
        Cancellable."""
        process = self._process()
        code = await process.wait()
        await process.aclose()
        self._running = None
        return code

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for its end."""
        self.tell(signal.SIGKILL)
        await self.wait()

    async def terminate(self) -> int:
        """Shut the service down with SIGTERM, and return its exit code."""
        self.tell(signal.SIGTERM)
        return await self.wait()

    async def end(self) -> None:
        """Shut the service down if it runs. Kill it if that takes longer than a minute."""
        if self._running is None:
            return
        with anyio.move_on_after(END_S):
            await self.terminate()
        if self._running is not None:
            await self.kill()

    def _process(self) -> Process:
        if self._running is None:
            raise InvalidInput("this service is not running")
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
    """Run ``llmsession serve`` with *arguments* in *folder*. The service is ready when the body of
    the context begins, and is shut down when the body is left.

    The service gets *environ* and the environment of this process, except for providers' keys and
    settings of the service. Raises the errors of ``ServedProgram.start``.
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
    """A loopback port that is free now. Use it for a service that keeps its port after a
    restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
