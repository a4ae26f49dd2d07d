"""Hosts watch each other. The directory and the services are real; who answers is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from llmsession.cluster.directory import Directory
from llmsession.cluster.ladder import Evidence
from llmsession.cluster.observing import Observer, ping
from tests.cluster.hosts import local_host
from tests.cluster.test_directory import LONG_S, join, opened, states
from tests.store.conftest import Database, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

SILENT_S = 0.4


class Answers:
    """Who answers whom."""

    def __init__(self) -> None:
        self.refuse: set[tuple[str, str]] = set()
        """Pairs of an observer and the address that does not answer it."""
        self.asked: set[tuple[str, str]] = set()

    def observer(self, directory: Directory, name: str) -> Observer:
        async def answer(address: str, tls: bool) -> bool:
            self.asked.add((name, address))
            if (name, address) in self.refuse:
                await asyncio.Event().wait()
            return True

        return Observer(directory, name, ping=answer)


@asynccontextmanager
async def observed(
    database: Database, answers: Answers, names: str, *, dead: str = "", **options: float
) -> AsyncIterator[dict[str, Directory]]:
    """A directory and an observer for each of *names*, and a row for *dead*, which neither enters
    again nor renews its lease. All have been asked once."""
    async with opened(database, len(names), silent_s=SILENT_S, **options) as directories:
        by_name = dict(zip(names, directories, strict=True))
        for name, directory in by_name.items():
            await join(directory, name)
        if dead:
            database.sql(
                f"INSERT INTO @host SELECT cluster, '{dead}', 'tcp://{dead}:1', 'up', 'i-{dead}',"
                " pid, started, machine, lease_until, settled_at FROM @host LIMIT 1"
            )
            database.sql("UPDATE @host_view SET version = version + 1")
        for directory in directories:
            await directory.refresh()
        async with AsyncExitStack() as stack:
            for name, directory in by_name.items():
                running = asyncio.create_task(answers.observer(directory, name).run())
                stack.callback(running.cancel)
            pairs = {(a, f"tcp://{b}:1") for a in names for b in names + dead if a != b}
            await until(lambda: answers.asked == pairs)
            yield by_name


async def until_gone(directory: Directory, name: str) -> None:
    await until(lambda: directory.view.by_name(name) is None)


async def test_a_host_that_is_silent_to_two_others_is_declared_dead(database: Database) -> None:
    answers = Answers()
    async with observed(database, answers, "ab", dead="c") as directories:
        answers.refuse = {("a", "tcp://c:1"), ("b", "tcp://c:1")}
        await asyncio.gather(*(until_gone(directories[name], "c") for name in "ab"))


async def test_a_host_that_lives_although_two_cannot_reach_it_is_not_declared_dead_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[str] = []
    declare_dead = Directory.declare_dead

    async def noted(directory: Directory, incarnation: str, why: str) -> bool:
        declared.append(why)
        return await declare_dead(directory, incarnation, why)

    monkeypatch.setattr(Directory, "declare_dead", noted)
    answers = Answers()
    async with observed(database, answers, "abc") as directories:
        answers.refuse = {("a", "tcp://c:1"), ("b", "tcp://c:1")}
        await until(lambda: declared)
        # It enters again at once. Hosts that it has not answered since are asked seldom.
        for _ in range(2):
            answers.asked.clear()
            await until(lambda: answers.refuse <= answers.asked)
        assert set(states(directories["a"].view)) == set("abc")
        assert set(declared) == {"silent to two observers"}
        assert len(declared) <= 2  # both may notice at the same time


async def test_a_host_that_is_silent_to_one_other_is_left_alone(database: Database) -> None:
    answers = Answers()
    async with observed(database, answers, "abc") as directories:
        answers.refuse = {("a", "tcp://c:1")}
        await until(lambda: database.sql("SELECT observer FROM @host_silence") == [("i-a",)])
        assert await directories["a"].suspect("i-c") == Evidence(silent_to=1)
        answers.refuse = set()
        await until(lambda: not database.sql("SELECT FROM @host_silence"))  # it was withdrawn
        assert set(states(directories["a"].view)) == set("abc")


async def test_of_two_hosts_the_directory_is_the_second_witness(database: Database) -> None:
    answers = Answers()
    async with observed(database, answers, "a", dead="b", poll_s=LONG_S / 10) as directories:
        answers.refuse = {("a", "tcp://b:1")}
        await until(lambda: database.sql("SELECT FROM @host_silence"))
        assert set(states(directories["a"].view)) == set("ab")
        # Its lease of 1,000 seconds was last renewed 300 ago, and a poll takes 100.
        late = "UPDATE @host SET lease_until = now() + interval '700 s' WHERE name = 'b'"
        database.sql(late)
        await until_gone(directories["a"], "b")


async def test_only_hosts_in_the_view_are_witnesses_and_only_for_a_while(
    database: Database,
) -> None:
    async with opened(database, 2, silent_s=SILENT_S) as (first, second):
        await join(first, "a")
        assert await second.suspect("i-a") is None  # it has not joined
        await join(second, "b")
        await first.refresh()
        report = "INSERT INTO @host_silence VALUES ('c', 'i-b', '{}', now() - interval '{}')"
        database.sql(report.format("stranger", "0 s"))
        database.sql(
            "INSERT INTO @host SELECT cluster, 'late', address, state, 'i-late', pid, started,"
            " machine, lease_until, settled_at FROM @host WHERE name = 'a'"
        )
        database.sql(report.format("i-late", "10 s"))
        assert await first.suspect("i-b") == Evidence(silent_to=1)
        database.sql("UPDATE @host_silence SET reported_at = now() WHERE observer = 'i-late'")
        assert await first.suspect("i-b") == Evidence(silent_to=2)
        await first.withdraw("i-b")
        assert await first.suspect("gone") is None
        assert database.sql("SELECT observer FROM @host_silence") == [("i-late",)]


async def test_a_service_answers_a_ping_without_a_token_and_nobody_else_does(
    database: Database, tmp_path: Path
) -> None:
    async with local_host(database, tmp_path, "a") as host, asyncio.timeout(150):
        assert await ping(host.address, False)
        assert await ping(host.address, True)  # a Unix socket has no TLS

    async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.close()

    server = await asyncio.start_unix_server(nobody, tmp_path / "nobody.sock")
    async with server, asyncio.timeout(150):
        assert not await ping(f"unix:{tmp_path}/nobody.sock", False)
    with pytest.raises(OSError, match="No such file"):
        await ping(f"unix:{tmp_path}/gone.sock", False)
