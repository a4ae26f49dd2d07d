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
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import anyio
import anyio.to_thread
import pytest

from llmsession import SessionManager
from llmsession.errors import SessionInUse
from llmsession.testing import ScriptedProvider, say
from tests.session.actors import check_log
from tests.session.probes import log_of
from tests.store.crash.life import Told, open_place, read_told
from tests.store.crash.zombie import Where

pytestmark = pytest.mark.real_time
RUN = "from tests.store.crash.zombie import main; main()"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the other process is what is tested here


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 's.db'}"
    server = request.getfixturevalue("postgres_server")
    return f"{server.dsn}#zombie{time.monotonic_ns()}"


class Zombie:
    """The other process, and what it told."""

    def __init__(self, running: subprocess.Popen[str], told: Path) -> None:
        self.pid = running.pid
        self._running = running
        self._told = told

    @property
    def told(self) -> list[Told]:
        return read_told(str(self._told)) if self._told.exists() else []

    async def wait_until(self, holds: Callable[[], bool]) -> None:
        with anyio.fail_after(150):
            while not holds():
                assert self._running.poll() is None, "it ended"
                await anyio.sleep(0.002)

    async def reach(self) -> None:
        await self.wait_until(lambda: any(each.what == "reached" for each in self.told))

    async def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        await self.wait_until(lambda: _is_stopped(self.pid))

    async def go_on(self) -> None:
        """Continue it, and wait for its end."""
        assert self._running.stdin is not None
        os.kill(self.pid, signal.SIGCONT)
        self._running.stdin.write("go on\n")
        self._running.stdin.flush()
        assert await anyio.to_thread.run_sync(self._running.wait, 150) == 0


def _is_stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    return stat.rpartition(")")[2].split()[0] == "T"


@contextmanager
def zombie(place: str, told: Path, where: Where) -> Iterator[Zombie]:
    arguments = [sys.executable, "-c", RUN, place, str(told), where]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, text=True) as running:
        try:
            yield Zombie(running, told)
        finally:
            running.kill()


@pytest.mark.parametrize("where", get_args(Where))
async def test_a_zombie_says_that_its_session_moved_and_writes_and_publishes_nothing(
    place: str, where: Where, tmp_path: Path
) -> None:
    provider = ScriptedProvider(lambda request, tag: say("mine now"))
    with zombie(place, tmp_path / "told", where) as other:
        await other.reach()
        await other.stop()
        store = open_place(place)
        async with SessionManager(provider=provider, store=store) as manager:
            # A process that is stopped is not dead.
            with pytest.raises(SessionInUse):
                await manager.open("s")
            session = await manager.open("s", takeover=True)
            assert await (await session.send("hello?")).text() == "mine now"
            log = await log_of(store, "s")
            before = await store.read("s")
            await other.go_on()
            assert await store.read("s") == before
            assert (await store.row("s")).owner == manager.owner  # it gave nothing back, either
            assert await (await session.send("all well?")).text() == "mine now"
    check_log(log)
    taken_at = next(record.seq for record in log if record.epoch > 1)
    told = other.told
    moved = [each.what for each in told if each.what not in ("shown", "reached", "continued")]
    # The turn, or the results that were to answer its call; then what is sent after that.
    assert moved == ["SessionMoved"] * {"idle": 1, "caller": 3}.get(where, 2)
    shown = [each for each in told if each.what == "shown"]
    assert [each.seq for each in shown] == list(range(1, taken_at))
    for each in shown:
        assert hashlib.sha256(before[each.seq - 1].body).hexdigest() == each.body
    after = told[[each.what for each in told].index("continued") :]
    assert [each for each in after if each.what == "shown"] == []
