"""The processes of a soak: the service, its model and its clients, started, stopped and killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from llmsession.errors import InvalidInput
from llmsession.testing.local_service import ServedProgram, free_port

from .errand import Errand, Told
from .model import Asked

__all__ = ["ClientProcess", "ModelProcess", "run_command", "service_program"]

ROOT = Path(__file__).resolve().parents[2]
END_S = 30.0


def service_program(folder: Path, store: str, model_url: str, *, idle_s: float) -> ServedProgram:
    """``llmsession serve`` on *store*, with a socket, gRPC and health; its model is at
    *model_url*. Not started yet."""
    told = f"""
store = "{store}"
listen = ["unix:{folder}/soak.sock"]
grpc = "127.0.0.1:{free_port()}"
health = "127.0.0.1:{free_port()}"
idle_s = {idle_s}
log_level = "warning"

[limits]
max_lag_s = 5.0

[providers.model]
kind = "anthropic"
base_url = "{model_url}"
"""
    config = folder / "serve.toml"
    config.write_text(told, "utf-8")
    environ = _environ() | {"MALLOC_ARENA_MAX": "2"}
    return ServedProgram(("--config", str(config)), folder, environ, folder / "service.log")


def _environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    # The service's key goes to a server of ours that lets any in.
    return kept | {"PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": "unused"}


class ModelProcess:
    """The model, which may be away for a while, and comes back at the same place."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._port = free_port()
        self._process: asyncio.subprocess.Process | None = None
        self.url = f"http://127.0.0.1:{self._port}"
        self.asked: list[Asked] = []

    async def start(self) -> None:
        """Start it, and wait until it listens. Raises InvalidInput where it does not."""
        program = [sys.executable, "-m", "benchmarks.soak.model", str(self._port), str(self._seed)]
        self._process = await asyncio.create_subprocess_exec(
            *program, cwd=ROOT, env=_environ(), stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise InvalidInput("the model's server did not start")

    async def stop(self) -> None:
        """End it, and keep what it was asked."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        told, _ = await self._process.communicate()
        self._process = None
        if told.strip():
            self.asked.append(msgspec.json.decode(told.splitlines()[-1], type=Asked))


class ClientProcess:
    """One client process, on one errand."""

    def __init__(self, errand: Errand) -> None:
        self.errand = errand
        self.was_killed = False
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> Told | str | None:
        """What it told; why it told nothing; None if it was killed. Cancelled, it is killed."""
        program = [sys.executable, "-m", "benchmarks.soak.client"]
        log = Path(self.errand.folder) / "clients.log"
        with log.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *program,
                msgspec.json.encode(self.errand).decode(),
                cwd=ROOT,
                env=_environ(),
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        try:
            said, _ = await self._process.communicate()
        except asyncio.CancelledError:
            self.kill()
            raise
        if self.was_killed:
            return None
        if self._process.returncode or not said.strip():
            return f"{self.errand.name} ended with {self._process.returncode}: see clients.log"
        return msgspec.json.decode(said.splitlines()[-1], type=Told)

    def kill(self) -> None:
        """It is gone without a word."""
        if self._process is not None and self._process.returncode is None:
            self.was_killed = True
            self._process.kill()


async def run_command(*arguments: str, folder: Path) -> tuple[int, str, str]:
    """``llmsession`` with *arguments*: its exit code, what it said, and on stderr."""
    program = [sys.executable, "-m", "llmsession", *arguments]
    running = await asyncio.create_subprocess_exec(
        *program,
        cwd=folder,
        env=_environ(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await running.communicate()
    return running.returncode or 0, said.decode(), errors.decode()
