"""A keeper and real hosts: it starts them, sees them end, and adopts what an earlier one left."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from llmsession import InvalidInput
from llmsession.cluster.directory import Directory
from llmsession.cluster.keeper import HostCommand, Keeper
from llmsession.cluster.supervisor import Node, Seen, SupervisedHost, follow
from llmsession.store.liveness import start_of
from llmsession.transcripts import write_own
from tests.store.conftest import Database, until
from tests.testing.conversations import recording, text

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


def kill_left(folder: Path) -> None:
    """Kill what a keeper that used *folder* left running."""
    for entry in folder.glob("*.json"):
        with suppress(msgspec.DecodeError):
            left = msgspec.json.decode(entry.read_bytes())
            if start_of(left["pid"]) == left["started"]:
                os.kill(left["pid"], signal.SIGKILL)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that is short enough for a socket. No process that is named in it outlives the test."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = Path(place)
        (folder / "talk.jsonl").write_bytes(write_own(recording([[text("hi")], [text("hello")]])))
        yield folder
        kill_left(folder)


def command(database: Database, folder: Path, *arguments: str) -> HostCommand:
    return HostCommand(
        database.schema,  # a cluster of its own for each test
        f"unix:{folder}",
        (
            "--replay",
            str(folder / "talk.jsonl"),
            "--grace",
            "0",
            "--log-level",
            "error",
            *arguments,
        ),
        {"LLMSESSION_SERVE_STORE": database.dsn},
    )


class Kept(msgspec.Struct):
    """A keeper, its directory, and all that it said."""

    keeper: Keeper
    directory: Directory
    changes: asyncio.Queue[SupervisedHost]

    async def until(self, holds: Callable[[SupervisedHost], bool]) -> SupervisedHost:
        """The next change of a host for which *holds*."""
        while True:
            host = await self.changes.get()
            if holds(host):
                return host

    async def until_up(self) -> SupervisedHost:
        return await self.until(lambda host: host.state == "up")


@asynccontextmanager
async def keeping(
    database: Database, folder: Path, *arguments: str, start_s: float = 100.0
) -> AsyncIterator[Kept]:
    changes: asyncio.Queue[SupervisedHost] = asyncio.Queue()
    line = command(database, folder, *arguments)
    async with (
        asyncio.timeout(100),
        Directory(database.dsn, line.cluster) as directory,
        Keeper(
            directory, line, folder, node="n", on_change=changes.put_nowait, start_s=start_s
        ) as keeper,
    ):
        yield Kept(keeper, directory, changes)


async def test_a_host_outlives_its_keeper_and_a_later_one_adopts_it_or_ends_it(
    database: Database, folder: Path
) -> None:
    async with keeping(database, folder) as first:
        await first.keeper.start("n", "n-1")
        started = await first.until_up()
        with pytest.raises(InvalidInput, match="another keeper"):
            await Keeper(first.directory, command(database, folder), folder, node="n").__aenter__()
    async with keeping(database, folder) as second:
        adopted = await second.until_up()
        assert (adopted.pid, adopted.address) == (started.pid, started.address)
    async with keeping(database, folder, "--replay-delay", "0.01") as third:
        # It was started in another way: what runs is to be what is asked for.
        gone = await third.until(lambda host: host.pid == 0)
        assert gone.state == "stopping"
        assert await asyncio.to_thread(start_of, started.pid) is None
        assert third.keeper.hosts == ()


async def test_a_host_that_is_started_while_the_others_are_ended_goes_on(
    database: Database, folder: Path
) -> None:
    async with keeping(database, folder) as kept:
        await kept.keeper.start("n", "n-1")
        await kept.until_up()
        ending = asyncio.create_task(kept.keeper.end())
        await kept.until(lambda host: host.state == "stopping")
        await kept.keeper.start("n", "n-2")
        await ending
        [left] = kept.keeper.hosts
        assert (left.name, left.state) in (("n-2", "starting"), ("n-2", "up"))
        await kept.keeper.end()


async def test_a_killed_host_is_declared_dead_and_started_again_under_its_name(
    database: Database, folder: Path
) -> None:
    async with keeping(database, folder) as kept:
        await kept.keeper.start("n", "n-1")
        first = await kept.until_up()
        (host,) = kept.directory.view.hosts
        os.kill(first.pid, signal.SIGKILL)
        ended = await kept.until(lambda host: host.state == "waiting")
        assert (ended.failures, ended.why) == (1, "SIGKILL ended its process")
        again = await kept.until_up()
        assert (again.name, again.address) == (first.name, first.address)
        assert again.pid != first.pid
        assert kept.directory.view.by_incarnation(host.incarnation) is None
        await kept.keeper.end()
        assert await asyncio.to_thread(start_of, again.pid) is None
        await kept.directory.refresh()
        assert kept.directory.view.hosts == ()


async def test_a_host_that_was_drained_is_known_as_such_until_it_is_started_again(
    database: Database, folder: Path
) -> None:
    async with keeping(database, folder) as kept:
        await kept.keeper.start("n", "n-1")
        first = await kept.until_up()
        assert not first.is_draining
        await kept.directory.drain("n-1")
        await until(lambda: kept.keeper.hosts[0].is_draining)
        os.kill(first.pid, signal.SIGTERM)
        again = await kept.until_up()
        assert not again.is_draining
        await kept.keeper.end()


async def test_a_host_that_cannot_start_says_why_and_is_tried_again_later(
    database: Database, folder: Path
) -> None:
    async with keeping(database, folder, "--replay", "nothing.jsonl") as kept:
        await kept.keeper.start("n", "n-1")
        tried = await kept.until(lambda host: host.state == "waiting" and host.failures == 2)
        assert tried.why.startswith("it ended with exit code 2: llmsession: --replay: ")
        await kept.keeper.stop("n-1")  # while it waits
        await kept.keeper.end()
        assert kept.keeper.hosts == ()


async def test_a_host_that_never_joins_is_killed(database: Database, folder: Path) -> None:
    async with keeping(database, folder, start_s=0.01) as kept:
        await kept.keeper.start("n", "n-1")
        ended = await kept.until(lambda host: host.state == "waiting")
        assert ended.why == "it had not joined after 0.01 s"
        await kept.keeper.end()


async def test_what_is_left_of_a_keeper_whose_hosts_have_ended_is_forgotten(
    database: Database, folder: Path
) -> None:
    process = await asyncio.create_subprocess_exec("true")
    entry = {"pid": process.pid, "started": "1", "machine": "elsewhere", "digest": ""}
    await process.wait()
    (folder / "n-1.json").write_bytes(msgspec.json.encode(entry))
    (folder / "n-2.json").write_bytes(b"half")
    async with keeping(database, folder) as kept:
        assert kept.keeper.hosts == ()
        assert not (folder / "n-1.json").exists()


def test_hosts_listen_at_ports_one_above_the_other_or_at_free_ones(database: Database) -> None:
    at = HostCommand("c", "tcp://127.0.0.1:7700")
    assert [at.address(f"n-{slot}") for slot in (1, 2)] == [
        "tcp://127.0.0.1:7700",
        "tcp://127.0.0.1:7701",
    ]
    assert HostCommand("c", "tcp://[::1]:0").address("n-3") == "tcp://[::1]:0"
    for wrong in ("grpc://a:1", "7700", "tcp://a"):
        with pytest.raises(InvalidInput):
            HostCommand("c", wrong).check()


class Notes:
    """A supervisor of one node that runs nothing, and notes what it is told."""

    def __init__(self) -> None:
        self.hosts: dict[str, SupervisedHost] = {}
        self.lost: frozenset[str] = frozenset()
        self.changed = asyncio.Event()
        self.told: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()

    async def look(self) -> Seen:
        return Seen((Node("n", 2),), tuple(self.hosts.values()), self.lost)

    async def start(self, node: str, host: str) -> None:
        self.hosts[host] = SupervisedHost(host, node, "up")
        self.changed.set()
        self.told.put_nowait(("start", host))

    async def stop(self, host: str) -> None:
        del self.hosts[host]
        self.changed.set()
        self.told.put_nowait(("stop", host))


async def test_a_supervisor_is_told_of_another_wanted_number_until_it_is_0(
    database: Database,
) -> None:
    notes = Notes()
    async with (
        asyncio.timeout(150),
        Directory(database.dsn, "c", schema=database.schema, poll_s=1000.0) as here,
        Directory(database.dsn, "c", schema=database.schema, poll_s=1000.0) as operator,
    ):
        await here.set_wanted(0)
        await here.set_wanted(None)
        assert here.wanted is None
        following = asyncio.create_task(follow(here, notes, notes.changed, poll_s=1000.0))
        # One for each core: the node has two.
        assert [await notes.told.get() for _ in range(2)] == [("start", "n-1"), ("start", "n-2")]
        await operator.set_wanted(3)
        assert await notes.told.get() == ("start", "n-3")
        await operator.set_wanted(2)
        assert await notes.told.get() == ("stop", "n-3")
        await operator.set_wanted(0)
        await following
        assert notes.hosts == {}
        with pytest.raises(InvalidInput, match="0 to"):
            await operator.set_wanted(-1)


async def test_the_hosts_of_a_lost_node_are_declared_dead_once(database: Database) -> None:
    notes = Notes()
    async with (
        asyncio.timeout(150),
        Directory(database.dsn, "c", schema=database.schema, poll_s=1000.0) as here,
    ):
        database.sql(
            "INSERT INTO @host SELECT 'c', n || '-1', 'unix:x', 'up', 'i-' || n, 1, '', '',"
            " now() + interval '1 h', now() FROM unnest(ARRAY['lost', 'kept']) AS n"
        )
        await here.set_wanted(1)
        following = asyncio.create_task(follow(here, notes, notes.changed, poll_s=1000.0))
        await notes.told.get()
        assert {host.name for host in here.view.hosts} == {"lost-1", "kept-1"}
        notes.lost = frozenset({"lost"})
        gone = asyncio.Event()
        here.watch(lambda _, after: gone.set() if len(after.hosts) == 1 else None)
        notes.changed.set()
        await gone.wait()
        assert [host.name for host in here.view.hosts] == ["kept-1"]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
