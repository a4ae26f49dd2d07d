"""Keeps the hosts of one machine running: starts, restarts and drains ``serve --cluster``.

A host is a child in a session of its own, whose output goes to a file. So it survives the keeper,
and Ctrl-C in a terminal does not reach it. A file for each host names its process: its pid and when
that started. A later keeper adopts the hosts that it finds so, or ends those that were started in
another way. A lock keeps a second keeper away meanwhile.

A host is up when its process has a row in the directory. When the process ends, the keeper declares
it dead, so that other hosts take its sessions at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from llmsession.errors import InvalidInput, StoreError
from llmsession.session.core.session_log import default_logger
from llmsession.store.liveness import lease_clock, start_of, this_host
from llmsession.transport.wire.addresses import parse_address

from .placement import Host, View
from .supervisor import (
    Node,
    RunState,
    Seen,
    SupervisedHost,
    failures_after,
    restart_delay_s,
    slot_of,
)

if TYPE_CHECKING:
    from .directory import Directory

__all__ = ["HostCommand", "Keeper"]

START_S = 120.0
"""How long a host may take until it has joined, on a busy machine."""
END_S = 120.0
"""How long a host may take to hand its sessions over and end; then it is killed."""
DECLARE_S = 30.0
"""For so long it is tried to declare a host dead; its lease has run out by then."""
RETRY_S = 0.5
POLL_S = 0.1
"""How often a process is looked at where the system cannot say when it ends."""
MAX_LOG_BYTES = 16 * 2**20
LAST_BYTES = 4096
LAST_CHARS = 500

_left_running: list[_Running] = []
"""Children that outlive their keeper; Python warns of one that is dropped while it runs."""

OnChange = Callable[[SupervisedHost], None]


class HostCommand(msgspec.Struct, frozen=True):
    """How hosts are started. ``listen`` is ``unix:FOLDER``: each has a socket there that is named
    after it. Or it is ``tcp://HOST:PORT``: the first host of a node has that port, the next one the
    port above; with port 0 each has one that is free."""

    cluster: str
    listen: str
    arguments: tuple[str, ...] = ()
    """Further arguments of ``llmsession serve``."""
    environ: Mapping[str, str] = {}
    """Environment variables beside those of the keeper, for example ``LLMSESSION_SERVE_STORE``.
    They are not seen in the list of processes."""

    def check(self) -> None:
        """Raises InvalidInput if no host can listen there."""
        self.address("host-1")

    def address(self, host: str) -> str:
        """Where *host* listens. Raises InvalidInput."""
        if self.listen.startswith("unix:"):
            return f"{self.listen}/{host}.sock"
        address = parse_address(self.listen)
        if not self.listen.startswith("tcp://"):
            raise InvalidInput(f"hosts listen at unix:FOLDER or tcp://HOST:PORT, not {self.listen}")
        port = address.port + slot_of(host) - 1 if address.port else 0
        return f"{self.listen.rpartition(':')[0]}:{port}"

    def line(self, host: str) -> list[str]:
        """The command that starts *host*."""
        return [
            *(sys.executable, "-m", "llmsession", "serve", "--cluster", self.cluster),
            *("--host-name", host, "--listen", self.address(host), *self.arguments),
        ]

    def digest(self, host: str) -> str:
        """Tells apart hosts that were started with other settings. Keeps none of them."""
        parts = (*self.line(host), *(f"{k}={v}" for k, v in sorted(self.environ.items())))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class _Entry(msgspec.Struct, frozen=True):
    """The file of a host: its process, and what it was started with."""

    pid: int
    started: str
    machine: str
    digest: str


class Keeper:
    """Keeps hosts running on this machine, which is the node *node*: a ``Supervisor`` of one node.

    Use it as an async context manager, in asyncio. *folder* has the hosts' logs and sockets, and is
    created. *on_change* is called with a host whenever its state changes. *niceness* is that of the
    hosts, if this process may set it. When the context ends, the hosts go on; ``end`` ends them.
    Raises InvalidInput if another keeper uses the folder, or if it cannot be used.
    """

    def __init__(
        self,
        directory: Directory,
        command: HostCommand,
        folder: Path,
        *,
        node: str,
        slots: int | None = None,
        niceness: int | None = None,
        on_change: OnChange | None = None,
        logger: Any | None = None,
        start_s: float = START_S,
        end_s: float = END_S,
    ) -> None:
        command.check()
        self._directory = directory
        self._command = command
        self._folder = folder
        self._node = Node(node, slots if slots is not None else _cores())
        self._niceness = niceness
        self._on_change = on_change
        self._log = logger if logger is not None else default_logger()
        self._start_s, self._end_s = start_s, end_s
        self._hosts: dict[str, _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = -1

    async def __aenter__(self) -> Keeper:
        self._directory.watch(self._view_changed)
        self._lock, left = await asyncio.to_thread(_opened, self._folder)
        for name, entry, running in left:
            self._adopt(name, entry, running)
        self._view_changed(self._directory.view, self._directory.view)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for kept in self._hosts.values():
            if kept.running is not None:
                _left_running.append(kept.running)
        tasks, self._hosts = tuple(self._tasks), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        os.close(self._lock)

    @property
    def hosts(self) -> tuple[SupervisedHost, ...]:
        """The hosts that are kept here, by name."""
        return tuple(self._shown(kept) for _, kept in sorted(self._hosts.items()))

    async def look(self) -> Seen:
        """See ``Supervisor``."""
        return Seen((self._node,), self.hosts)

    async def start(self, node: str, host: str) -> None:
        """See ``Supervisor``. Does nothing if *host* is kept already."""
        if host not in self._hosts:
            self._keep(_Kept(host))

    async def stop(self, host: str) -> None:
        """See ``Supervisor``. Does nothing if there is no such host."""
        kept = self._hosts.get(host)
        if kept is not None and kept.state != "stopping":
            self._stop(kept)

    async def end(self) -> None:
        """Drain the hosts that are kept now, and wait until they have ended. One that is started
        meanwhile goes on. Cancellable; they go on ending then."""
        ending = [kept.task for kept in self._hosts.values() if kept.task]
        for name in tuple(self._hosts):
            await self.stop(name)
        if ending:
            await asyncio.wait(ending)

    def kill(self) -> None:
        """Kill all hosts that are stopping, at once."""
        for kept in self._hosts.values():
            if kept.state == "stopping" and kept.running is not None:
                kept.running.tell(signal.SIGKILL)

    # One host.

    def _adopt(self, name: str, entry: _Entry, running: _Running) -> None:
        self._log.info("cluster.host_adopted", host=name, pid=entry.pid)
        kept = _Kept(name, running)
        self._keep(kept)
        if entry.digest != self._command.digest(name):
            self._stop(kept)

    def _keep(self, kept: _Kept) -> None:
        self._hosts[kept.name] = kept
        kept.task = asyncio.get_running_loop().create_task(self._run(kept))
        self._tasks.add(kept.task)
        kept.task.add_done_callback(self._tasks.discard)

    def _stop(self, kept: _Kept) -> None:
        kept.asked_to_stop.set()
        self._terminate(kept)
        self._become(kept, "stopping")

    def _terminate(self, kept: _Kept) -> None:
        if kept.running is not None:  # otherwise it is not started yet, or not any more
            kept.running.tell(signal.SIGTERM)
            self._arm(kept, self._end_s, f"it had not ended after {self._end_s:g} s")

    async def _run(self, kept: _Kept) -> None:
        """Start *kept*, and start it again whenever it ends, until it is to stop."""
        try:
            while kept.running is not None or not kept.asked_to_stop.is_set():
                await self._once(kept)
                if kept.asked_to_stop.is_set():
                    break
                self._become(kept, "waiting")
                with suppress(TimeoutError):
                    async with asyncio.timeout(restart_delay_s(kept.failures)):
                        await kept.asked_to_stop.wait()
        finally:
            kept.disarm()
        del self._hosts[kept.name]
        self._tell(kept)

    async def _once(self, kept: _Kept) -> None:
        """One life of *kept*: until its process has ended."""
        begun = lease_clock()
        if kept.running is None:
            try:
                kept.running = await asyncio.to_thread(self._spawned, kept.name)
            except OSError as error:
                kept.why, kept.failures = f"it cannot be started: {error}", kept.failures + 1
                return
            self._log.info("cluster.host_started", host=kept.name, pid=kept.running.pid)
        kept.incarnation = ""
        if kept.asked_to_stop.is_set():
            self._terminate(kept)
        else:
            self._become(kept, "starting")
            self._arm(kept, self._start_s, f"it had not joined after {self._start_s:g} s")
            self._find(kept)
        running = kept.running
        code = await running.ended()
        kept.disarm()
        self._declare_dead(kept, running)
        kept.running, kept.address, kept.is_draining = None, "", False
        said = await asyncio.to_thread(_ended, self._folder, kept.name)
        kept.why = kept.killed_because or _ending(code, said)
        kept.killed_because = ""
        if code == 0:
            kept.failures = 0  # somebody asked it to: it is started again with the code of today
        else:
            kept.failures = failures_after(kept.failures, lease_clock() - begun)
        self._log.info("cluster.host_ended", host=kept.name, pid=running.pid, why=kept.why)

    def _spawned(self, name: str) -> _Running:
        log = _log_file(self._folder, name)
        with log.open("ab") as output:
            process = subprocess.Popen(
                self._command.line(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **self._command.environ},
            )
        if self._niceness is not None:
            with suppress(PermissionError, ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, process.pid, self._niceness)
        running = _Running(process.pid, start_of(process.pid) or "", process)
        entry = _Entry(running.pid, running.started, this_host(), self._command.digest(name))
        try:
            _remember(self._folder, name, entry)
        except OSError:
            process.kill()  # a later keeper would not know of it
            raise
        return running

    def _arm(self, kept: _Kept, after_s: float, because: str) -> None:
        """Kill the process of *kept* after *after_s* seconds, unless that is called off."""

        def kill() -> None:
            if kept.running is not None:
                kept.killed_because = because
                kept.running.tell(signal.SIGKILL)

        kept.disarm()
        kept.timer = asyncio.get_running_loop().call_later(after_s, kill)

    # The directory.

    def _view_changed(self, _before: View, _after: View) -> None:
        for kept in self._hosts.values():
            self._find(kept)

    def _find(self, kept: _Kept) -> None:
        """Is there a row of the process of *kept*? Then it has joined."""
        host = None if kept.running is None else self._row_of(kept.running)
        if host is None:
            return
        kept.incarnation, kept.address = host.incarnation, host.address
        kept.is_draining = host.state == "draining"
        if kept.state == "starting":
            kept.disarm()
            self._become(kept, "up")

    def _row_of(self, running: _Running) -> Host | None:
        for host in self._directory.view.hosts:
            owner = self._directory.process_of(host)
            if owner is not None and (owner.pid, owner.started) == running.identity:
                return host if owner.host == this_host() else None
        return None

    def _declare_dead(self, kept: _Kept, running: _Running) -> None:
        task = asyncio.get_running_loop().create_task(self._declare(kept.incarnation, running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _declare(self, incarnation: str, running: _Running) -> None:
        until = lease_clock() + DECLARE_S
        while lease_clock() < until:
            try:
                if not incarnation:  # it may have joined a moment ago
                    await self._directory.refresh()
                    host = self._row_of(running)
                    incarnation = host.incarnation if host is not None else ""
                if incarnation:
                    await self._directory.declare_dead(incarnation, "its process ended")
            except StoreError as error:
                self._log.warning("cluster.directory_unreachable", why=str(error))
            else:
                return
            await asyncio.sleep(RETRY_S)

    # What others see.

    def _become(self, kept: _Kept, state: RunState) -> None:
        kept.state = state
        self._tell(kept)

    def _tell(self, kept: _Kept) -> None:
        if self._on_change is not None:
            self._on_change(self._shown(kept))

    def _shown(self, kept: _Kept) -> SupervisedHost:
        return SupervisedHost(
            kept.name,
            self._node.name,
            kept.state,
            pid=kept.running.pid if kept.running is not None else 0,
            address=kept.address,
            failures=kept.failures,
            why=kept.why,
            is_draining=kept.is_draining,
        )


class _Kept:
    """What a keeper knows of one host."""

    def __init__(self, name: str, running: _Running | None = None) -> None:
        self.name = name
        self.running = running
        self.state: RunState = "starting"
        self.incarnation = ""
        self.address = ""
        self.is_draining = False
        self.failures = 0
        self.why = ""
        self.killed_because = ""
        self.asked_to_stop = asyncio.Event()
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def disarm(self) -> None:
        """Let its process live."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Running:
    """A process: *process* if it is our child; otherwise it was found. It is held by a file
    descriptor, where the system has these, so that no other one with its pid is meant."""

    def __init__(
        self, pid: int, started: str, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.pid, self.started = pid, started
        self._process = process
        self._held: int | None = None
        with suppress(AttributeError, OSError):  # not Linux, or an old one
            self._held = os.pidfd_open(pid)

    @classmethod
    def found(cls, entry: _Entry) -> _Running | None:
        """The process that *entry* names; None if it has ended. Reads files."""
        if not entry.started or entry.machine != this_host():
            return None
        running = cls(entry.pid, entry.started)
        if not running.is_alive():
            running.let_go()
            return None
        return running

    @property
    def identity(self) -> tuple[int, str]:
        """Its pid, and when it started."""
        return self.pid, self.started

    def is_alive(self) -> bool:
        """Does it run? May read a file."""
        if self._process is not None:
            return self._process.poll() is None
        return start_of(self.pid) == self.started

    def tell(self, which: signal.Signals) -> None:
        """Send it the signal *which*, if it runs."""
        with suppress(ProcessLookupError):
            if self._held is not None:
                signal.pidfd_send_signal(self._held, which)
            elif self._process is not None:
                self._process.send_signal(which)
            else:
                os.kill(self.pid, which)

    async def ended(self) -> int | None:
        """Wait until it has ended. Returns its exit code, which is negative for a signal; None if
        it is not our child."""
        try:
            if self._held is not None:
                await _readable(self._held)
            while await asyncio.to_thread(self.is_alive):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(POLL_S)
        finally:
            self.let_go()
        return None if self._process is None else self._process.returncode

    def let_go(self) -> None:
        """Hold it no more."""
        if self._held is not None:
            os.close(self._held)
            self._held = None


async def _readable(file: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


# The folder.


def _opened(folder: Path) -> tuple[int, list[tuple[str, _Entry, _Running]]]:
    """The lock of *folder*, and what an earlier keeper left running there. Raises InvalidInput."""
    lock, left = _locked(folder), []
    for name, entry in _entries(folder):
        running = _Running.found(entry)
        if running is None:
            _forget(folder, name)
        else:
            left.append((name, entry, running))
    return lock, left


def _locked(folder: Path) -> int:
    """The folder's lock, which is held as long as it is open. Raises InvalidInput."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidInput(f"the folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise InvalidInput(
            f"another keeper runs hosts in {folder}; end it, or use another folder"
        ) from error
    return lock


def _entry_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _log_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


def _entries(folder: Path) -> list[tuple[str, _Entry]]:
    found = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):  # half written: nobody waits for it
            found.append((path.stem, msgspec.json.decode(path.read_bytes(), type=_Entry)))
    return found


def _remember(folder: Path, name: str, entry: _Entry) -> None:
    path = _entry_path(folder, name)
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(entry))
    new.replace(path)


def _forget(folder: Path, name: str) -> None:
    with suppress(OSError):  # its process has ended, which every keeper sees
        _entry_path(folder, name).unlink()


def _log_file(folder: Path, name: str) -> Path:
    """The log of the host *name*. One that has grown long becomes ``NAME.log.1`` first."""
    path = _log_path(folder, name)
    with suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    return path


def _ended(folder: Path, name: str) -> str:
    """Note that the process of the host *name* has ended. Returns what it said last."""
    _forget(folder, name)
    return _last_line(_log_path(folder, name))


def _ending(code: int | None, said: str) -> str:
    """How a process ended that had the exit code *code* and said *said*."""
    if code is None:
        return "its process ended"
    if code < 0:
        return f"{signal.Signals(-code).name} ended its process"
    return f"it ended with exit code {code}" + (f": {said}" if said and code else "")


def _last_line(path: Path) -> str:
    """The last line of the file at *path* that says something."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[-LAST_CHARS:] if lines else ""
