"""Run an adapter beside a strict server, each a process of its own, and measure it from outside."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from .catalogue import ADAPTERS, ROOT, Peer
from .model_server import Asked, read_log
from .reading import measured_by_server, read_kill
from .works import Work

__all__ = ["Ran", "run_work"]

KILL_AFTER_TURNS = 3
KILL_LIMIT_S = 300.0
CHATTER = {
    "DO_NOT_TRACK": "1",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "OTEL_SDK_DISABLED": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    "OPENAI_API_KEY": "none",
}
"""Peers that report home do not; nothing leaves this machine."""


class Ran(msgspec.Struct, frozen=True):
    """What became of one work of one peer: its figures, or why there are none."""

    measured: dict[str, Any] = {}
    unsupported: str | None = None
    failed: str | None = None


def run_work(
    peer: Peer, python: str, work: Work, *, seed: int, sizes: dict[str, int] | None = None
) -> Ran:
    """Run *work* with *peer* in *python*. Nothing is raised for what a peer does."""
    sizes = work.sizes if sizes is None else sizes
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as scratch:
        run = _Run(peer, python, work, seed=seed, sizes=sizes, scratch=Path(scratch))
        ended, log = run.once({})
        if "unsupported" in ended:
            return Ran(unsupported=ended["unsupported"])
        if "crashed" in ended:
            return Ran(failed=ended["crashed"])
        measured = {**ended, **measured_by_server(work.name, log, ended)}
        measured.pop("sent_s", None)
        if work.name == "persistence":
            measured |= run.kills()
        return Ran(measured)


class _Run:
    """One work of one peer; its scratch folder."""

    def __init__(
        self,
        peer: Peer,
        python: str,
        work: Work,
        *,
        seed: int,
        sizes: dict[str, int],
        scratch: Path,
    ) -> None:
        self._peer, self._python, self._work = peer, python, work
        self._seed, self._sizes, self._scratch = seed, sizes, scratch
        # Alone in a folder: beside it an adapter would stand in the way of the library it names.
        self._path = scratch / "path"
        self._path.mkdir()
        shutil.copy(ADAPTERS / "common.py", self._path)

    def once(
        self, more: dict[str, Any], folder: str = "work", kill_s: float | None = None
    ) -> tuple[dict[str, Any], list[Asked]]:
        """One process of the adapter beside one of the server, to its end; with *kill_s* killed so
        many seconds after it has said that KILL_AFTER_TURNS turns are done."""
        place = self._scratch / folder
        place.mkdir(exist_ok=True)
        log = self._scratch / f"{folder}.log"
        with _model_server(log) as url:
            options = {
                **self._sizes,
                "base_url": url,
                "model": self._work.model,
                "window_tokens": self._work.window_tokens,
                "seed": self._seed,
                "folder": str(place),
                **more,
            }
            ended = self._adapter(options, kill_s)
        return ended, read_log(log)

    def kills(self) -> dict[str, Any]:
        """SIGKILL in the middle of a turn, and what the next process finds; a few times."""
        chance = random.Random(self._seed)
        lost = half = recovered = 0
        errors: list[str] = []
        for at in range(self._sizes["kills"]):
            ended, _ = self.once({"endless": True}, f"kill-{at}", chance.uniform(0.05, 0.45))
            done = int(ended.get("done", -1))
            again, log = self.once({"recover": True}, f"kill-{at}")
            found = read_kill(log, done)
            lost, half = lost + found["lost"], half + found["half"]
            recovered += int(bool(again.get("answered")) and found["recovers"] == 1)
            if error := again.get("error") or again.get("crashed"):
                errors.append(error)
        return {
            "lost_after_kill": lost,
            "half_after_kill": half,
            "recovers": recovered,
            "kills": self._sizes["kills"],
            "error_after_kill": errors[0] if errors else None,
        }

    def _adapter(self, options: dict[str, Any], kill_s: float | None) -> dict[str, Any]:
        out, err = self._scratch / "stdout", self._scratch / "stderr"
        # -P: the adapter's folder is not searched for modules.
        command = [self._python, "-P", str(self._peer.script), self._work.name, json.dumps(options)]
        path = [str(self._path), *([str(ROOT)] if self._python == sys.executable else [])]
        environ = {**os.environ, **CHATTER, "PYTHONPATH": os.pathsep.join(path)}
        with out.open("wb") as stdout, err.open("wb") as stderr:
            child = subprocess.Popen(
                command,
                stdout=stdout,
                stderr=stderr,
                env=environ,
                cwd=options["folder"],
                start_new_session=True,
            )
            timed_out = False
            try:
                if kill_s is not None:
                    _wait_in_a_turn(out, kill_s)
                    _kill_all(child)
                child.wait(self._work.limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _kill_all(child)
        said = _last_line(out)
        if timed_out:
            said = {"crashed": f"it was not done after {self._work.limit_s:g} s"}
        elif kill_s is None and not said:
            said = {"crashed": _last_words(err) or f"it ended with {child.returncode}"}
        return said


@contextmanager
def _model_server(log: Path) -> Iterator[str]:
    """A strict server; its URL. *log* is there when it has stopped."""
    command = [sys.executable, "-m", "benchmarks.peers.model_server", str(log)]
    server = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(300)
        server.stdout.close()


def _wait_in_a_turn(out: Path, kill_s: float) -> None:
    deadline = time.monotonic() + KILL_LIMIT_S
    while out.read_bytes().count(b"\n") < KILL_AFTER_TURNS and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(kill_s)


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the adapter and to all processes that it started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_line(out: Path) -> dict[str, Any]:
    """The last whole line of JSON that was printed; libraries may print others before it."""
    for line in reversed(out.read_bytes().splitlines(keepends=True)):
        if line.startswith(b"{") and line.endswith(b"\n"):
            with suppress(json.JSONDecodeError):
                return dict(json.loads(line))
    return {}


def _last_words(err: Path) -> str:
    lines: Sequence[str] = err.read_text("utf-8", "replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:200] if said else ""
