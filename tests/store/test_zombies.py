"""A process that was stopped, lost its sessions to another one, and goes on: it says so, and
writes and publishes nothing more."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

import anyio
import anyio.to_thread
import msgspec
import pytest

from llmsession import SessionManager
from llmsession.errors import SessionInUse
from llmsession.session.manager import runtime_of
from llmsession.testing import ScriptedProvider, say
from tests.session.actors import check_log
from tests.session.probes import log_of
from tests.store.crash.life import Told, open_place, read_told
from tests.store.crash.zombie import Order, Where

# The other process is what is tested here.
pytestmark = [pytest.mark.real_time, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 's.db'}"
    server = request.getfixturevalue("postgres_server")
    return f"{server.dsn}#zombie{time.monotonic_ns()}"


@pytest.fixture(scope="module")
def graveyard() -> Iterator[subprocess.Popen[bytes]]:
    """The process that the others are forked from."""
    with subprocess.Popen(
        [sys.executable, "-c", "from tests.store.crash.zombie import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        yield running
        running.communicate(timeout=100)


class Zombie:
    """The other process, and what it told."""

    def __init__(self, graveyard: subprocess.Popen[bytes], order: Order) -> None:
        assert graveyard.stdin is not None
        assert graveyard.stdout is not None
        self._told = Path(order.told)
        self._may_go_on = Path(order.may_go_on)
        self._answers = graveyard.stdout
        graveyard.stdin.write(msgspec.json.encode(order) + b"\n")
        graveyard.stdin.flush()
        self.pid = int(self._answers.readline())
        self.status: int | None = None

    @property
    def told(self) -> list[Told]:
        return read_told(str(self._told)) if self._told.exists() else []

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(150):
            while not holds():
                os.kill(self.pid, 0)  # it is there
                await anyio.sleep(0.002)

    async def reach(self) -> None:
        await self.wait_until(lambda: any(each.what == "reached" for each in self.told))

    async def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        await self.wait_until(lambda: _is_stopped(self.pid))

    async def go_on(self) -> None:
        """Continue it, and wait for its end."""
        self._may_go_on.touch()
        os.kill(self.pid, signal.SIGCONT)
        assert await anyio.to_thread.run_sync(self.wait) == 0

    def wait(self) -> int:
        """Its status, once it has ended."""
        self.status = int(self._answers.readline())
        return self.status


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    return stat.rpartition(")")[2].split()[0] == "T"


@contextmanager
def zombie(
    graveyard: subprocess.Popen[bytes], place: str, folder: Path, where: Where
) -> Iterator[Zombie]:
    order = Order(place, str(folder / "told"), where, str(folder / "go on"))
    other = Zombie(graveyard, order)
    try:
        yield other
    finally:
        if other.status is None:
            with suppress(ProcessLookupError):
                os.kill(other.pid, signal.SIGKILL)
            other.wait()


@pytest.mark.parametrize("where", get_args(Where))
async def test_a_zombie_says_that_its_session_moved_and_writes_and_publishes_nothing(
    graveyard: subprocess.Popen[bytes], place: str, where: Where, tmp_path: Path
) -> None:
    provider = ScriptedProvider(lambda request, tag: say("mine now"))
    with zombie(graveyard, place, tmp_path, where) as other:
        await other.reach()
        await other.stop()
        store = open_place(place)
        async with SessionManager(provider=provider, store=store) as manager:
            # A process that is stopped is not dead.
            with pytest.raises(SessionInUse):
                await manager.open("s")
            session = await manager.open("s", takeover=True, unbound="caller")
            assert await (await session.send("hello?")).text() == "mine now"
            log = await log_of(store, "s")
            before = await store.read("s")
            await other.go_on()
            assert await store.read("s") == before
            # It gave nothing back, either.
            assert (await store.row("s")).owner == runtime_of(manager).owner
            assert await (await session.send("all well?")).text() == "mine now"
    check_log(log)
    taken_at = next(record.seq for record in log if record.epoch > 1)
    told = other.told
    moved = [each.what for each in told if each.what not in ("shown", "reached")]
    # The turn, or the results that were to answer its call; then what is sent after that.
    assert moved == ["SessionMoved"] * {"idle": 1, "caller": 3}.get(where, 2)
    shown = [each for each in told if each.what == "shown"]
    assert [each.seq for each in shown] == list(range(1, taken_at))
    for each in shown:
        assert hashlib.sha256(before[each.seq - 1].body).hexdigest() == each.body
    # All that was durable had been shown when it reached the place where it was stopped.
    after = told[[each.what for each in told].index("reached") :]
    assert [each for each in after if each.what == "shown"] == []
