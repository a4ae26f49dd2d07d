"""A search finds what conversations say, in every store alike, and nothing that they no longer say.
What was forgotten, purged or deleted is not in the index's files either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from llmsession import (
    InvalidInput,
    MemoryStore,
    SessionConfig,
    SessionFilter,
    SessionManager,
    Store,
    Tool,
)
from llmsession.errors import RecordDamaged
from llmsession.session.operations.search import AT_ONCE
from llmsession.store import (
    Batch,
    Owner,
    PostgresStore,
    SqliteStore,
    StoredRecord,
    Word,
)
from llmsession.testing import ScriptedProvider, call, say
from llmsession.testing.scripted import Scripted, think
from llmsession.testing.store_contract.actions import Answer, written
from llmsession.turns.request import Request, StepTag
from tests.store.conftest import Database

pytestmark = pytest.mark.real_time
KEY = bytes(range(32))
CONFIG = SessionConfig(model="m")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is tested here lies in files


class Place:
    """A store, and what can be read in its files without it."""

    def __init__(self, make: Callable[[], Store], files: Callable[[], bytes]) -> None:
        self.make = make
        self.files = files

    def has(self, word: str) -> bool:
        """Is *word*, but for its beginning, which an index may share with another's, in a file?"""
        return word[4:].encode() in self.files()

    @asynccontextmanager
    async def managing(
        self, script: Callable[[Request, StepTag], Scripted] = lambda request, tag: say("fine")
    ) -> AsyncIterator[SessionManager]:
        with anyio.fail_after(150):
            provider = ScriptedProvider(script)
            async with SessionManager(provider=provider, store=self.make()) as manager:
                yield manager


@pytest.fixture
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Place]:
    def place_of(kind: str) -> Place:
        key = KEY if kind.endswith("with a key") else None
        if kind == "memory":
            store = MemoryStore()
            return Place(lambda: store, lambda: b"")
        if kind.startswith("sqlite"):
            path = tmp_path / "s.db"
            return Place(
                lambda: SqliteStore(path, key=key),
                lambda: b"".join(file.read_bytes() for file in sorted(tmp_path.glob("s.db*"))),
            )
        database: Database = request.getfixturevalue("frail_database")

        def make() -> Store:
            return PostgresStore(database.dsn, schema=database.schema, key=key)

        return Place(make, database.everything)

    return place_of


KINDS = ["memory", "sqlite", "sqlite with a key", "postgres", "postgres with a key"]


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def indexed_place(request: pytest.FixtureRequest, place_of: Callable[[str], Place]) -> Place:
    return place_of(request.param)


async def found(manager: SessionManager, query: str, **filters: object) -> list[str]:
    """The sessions that are found, of all pages."""
    sessions: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await manager.search(query, after=after, limit=2, **filters)  # type: ignore[arg-type]
        assert not page.skipped
        sessions += [hit.session for hit in page.hits]
        after = page.next
    return sessions


def talk(request: Request, tag: StepTag) -> Scripted:
    if tag.turn == 1 and tag.step == 1:
        calls = call("look_up", {"path": "src/Main.py", "depth": [{"levels": 42}]}, id="c1")
        return think("pondering") + say("let me look") + calls
    return say("The Straße is closed, naïvely speaking. Ответ: 会话被压缩")


async def look_up(path: str, depth: object) -> str:
    await anyio.lowlevel.checkpoint()
    return "x" * 20_000 + " the result: E_CONN_RESET " + "y" * 20_000


async def test_a_message_with_all_words_of_the_query_is_found_whoever_said_it(place: Place) -> None:
    tool = Tool(name="look_up", input_schema={"type": "object"}, run=look_up)
    async with place.managing(talk) as manager:
        config = SessionConfig(model="m", tools=(tool,))
        for name in ("a", "b", "c"):
            session = await manager.create(config, session_id=name, labels={"n": name})
            if name != "c":
                assert await (await session.send(f"Where is the {name}-bus, please?")).text()
        for query in (
            "bus", "BUS", "where please", "a-bus", '"let me look"', "look_up", "Main.py", "42",
            "levels", "e_conn_reset", "strasse", "STRASSE closed", "ответ", "压缩", "会话", "clos*",
            '"is closed"', "speaking naïvely", "stra*",
        ):  # fmt: skip
            expected = ["a"] if query == "a-bus" else ["a", "b"]
            assert (query, await found(manager, query)) == (query, expected)
        for query in (
            "pondering", "clos", '"closed is"', "bus closed", "缩压", "bu", "xx", "fin*", '"bus a"',
        ):  # fmt: skip
            assert (query, await found(manager, query)) == (query, [])
        assert await found(manager, "bus", filter=SessionFilter(labels={"n": "b"})) == ["b"]
        [hit] = (await manager.search("bus", limit=1)).hits
        assert (hit.session, hit.messages, hit.turn, hit.role) == ("a", 1, 1, "user")
        assert "Where is the a-bus" in hit.excerpt
        assert hit.at > 0
        [hit] = (await manager.search("e_conn_reset", after="a")).hits
        assert "the result: E_CONN_RESET" in hit.excerpt
        assert len(hit.excerpt) < 200


async def test_what_is_said_after_a_search_is_found_by_the_next(place: Place) -> None:
    async with place.managing() as manager:
        session = await manager.create(CONFIG, session_id="s")
        await (await session.send("first words")).text()
        assert await found(manager, "words") == ["s"]
        fork = await session.fork(session_id="t")
        await (await fork.send("second thoughts")).text()
        await (await session.send("third things")).text()
        assert await found(manager, "words") == ["s", "t"]
        assert await found(manager, "thoughts") == ["t"]
        assert await found(manager, "things") == ["s"]
    async with place.managing() as manager:  # by another owner
        session = await manager.open("s")
        await (await session.send("fourth thoughts")).text()
        assert await found(manager, "thoughts") == ["s", "t"]


async def test_what_a_conversation_does_not_say_any_more_is_not_found(place: Place) -> None:
    async with place.managing() as manager:
        session = await manager.create(CONFIG, session_id="s")
        for word in ("forgotten", "kept", "rewound"):
            await (await session.send(f"it is {word}")).text()
        fork = await session.fork(session_id="t")
        assert await found(manager, "forgotten") == ["s", "t"]
        await session.rewind(to="a2")
        assert await found(manager, "rewound") == ["t"]
        await session.forget(before="u2")
        assert await found(manager, "forgotten") == ["t"]
        assert await found(manager, "kept") == ["s", "t"]
        await (await session.send("it is later")).text()
        assert await found(manager, "later") == ["s"]
        await fork.clear(purge=True)
        assert await found(manager, "kept") == ["s"]
        await manager.delete("s")
        assert await found(manager, "kept") == []
        assert await found(manager, "it") == []


@pytest.mark.parametrize("way", ["forget", "purge", "delete"])
async def test_erased_words_are_in_no_file_of_the_index_after_a_vacuum(
    indexed_place: Place, way: str
) -> None:
    place = indexed_place
    async with place.managing() as manager:
        kept = await manager.create(CONFIG, session_id="kept")
        await (await kept.send("remember REMAININGWORD")).text()
        session = await manager.create(CONFIG, session_id="s")
        await (await session.send("erase FORGOTTENWORD")).text()
        await (await session.send("and then")).text()
        assert await found(manager, "forgottenword") == ["s"]
        if way == "forget":
            await session.forget(before="u2")
        elif way == "purge":
            await session.clear(purge=True)
        else:
            await manager.delete("s")
        assert await found(manager, "forgottenword") == []
        assert await found(manager, "remainingword") == ["kept"]
        # Said in capitals: small letters are in the index alone.
        assert place.has("forgottenword")
        await manager.store.vacuum()
        assert not place.has("forgottenword")
        assert not place.has("FORGOTTENWORD")
        assert place.has("remainingword")
        assert await found(manager, "remainingword") == ["kept"]
        assert list(await manager.store.check()) == []


@pytest.mark.parametrize("kind", ["sqlite with a key", "postgres with a key"])
async def test_an_encrypted_store_keeps_no_word_in_the_open(
    place_of: Callable[[str], Place], kind: str
) -> None:
    place = place_of(kind)
    async with place.managing() as manager:
        session = await manager.create(CONFIG, session_id="s")
        await (await session.send("a SECRETWORD")).text()
        assert await found(manager, "secretword") == ["s"]
        assert not place.has("secretword")
        assert not place.has("SECRETWORD")


@pytest.mark.parametrize("query", ["", "  ", "?!", '""', "*", 7, None, "x" * 1001, "a " * 33])
async def test_a_query_without_a_word_or_with_too_much_is_refused(query: str) -> None:
    async with Place(MemoryStore, bytes).managing() as manager:
        with pytest.raises(InvalidInput, match="query"):
            await manager.search(query)
        with pytest.raises(InvalidInput, match="limit"):
            await manager.search("word", limit=0)


class _Damaged(MemoryStore):
    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> list[StoredRecord]:
        if session == "bad":
            raise RecordDamaged(session, 1, "it is missing")
        return list(await super().read(session, after=after, limit=limit))


async def test_a_session_that_cannot_be_read_is_named_and_the_others_are_searched() -> None:
    async with Place(_Damaged, bytes).managing() as manager:
        for name in ("bad", "good"):
            session = await manager.create(CONFIG, session_id=name)
            await (await session.send("a word")).text()
        page = await manager.search("word")
        assert [hit.session for hit in page.hits] == ["good"]
        assert list(page.skipped) == ["bad"]


class _Counting(MemoryStore):
    """Counts the reads that are under way, each of which takes a while."""

    reading = most = 0

    async def read(
        self, session: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[StoredRecord]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        self.reading -= 1
        return await super().read(session, after=after, limit=limit)


async def test_a_search_reads_several_logs_at_a_time_and_no_more_than_may_be_hits() -> None:
    store = _Counting()
    names = [f"s{number:02}" for number in range(10)]
    async with Place(lambda: store, bytes).managing() as manager:
        for name in names:
            session = await manager.create(CONFIG, session_id=name)
            await (await session.send("a word")).text()
        for limit, most, first in ((100, AT_ONCE, 10), (3, 3, 3), (1, 1, 1)):
            store.most = 0
            page = await manager.search("word", limit=limit)
            assert [hit.session for hit in page.hits] == names[:first]
            assert page.next == (None if first == 10 else names[first - 1])
            assert store.most == most


async def test_an_excerpt_has_no_character_that_a_terminal_would_obey(place: Place) -> None:
    async with place.managing() as manager:
        session = await manager.create(CONFIG, session_id="s")
        await (await session.send("a \x1b]52;c;aGk=\x07 word \u202e drow\n\n here")).text()
        [hit] = (await manager.search("word")).hits
        assert hit.excerpt == "a ]52;c;aGk= word drow here"


async def test_a_page_of_a_list_or_a_search_fetches_its_rows_and_no_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many sessions there are, and have the words. Bringing the index up to date is not
    part of a page."""
    fetched = 0

    async with database.store() as store:
        for number in range(30):
            lease = await store.create(f"s{number:02}", Owner("ann"))
            answer = Answer()
            store.append(
                Batch(lease.session, lease.epoch, 0, (b"needle",), 1.0, {"tenant": "acme"}),
                answer.done,
            )
            await answer.wait()
        query = ([Word("needle"), Word("need", is_prefix=True)], lambda body: [body.decode()])
        await store.rows_with(*query, limit=1)
        fetch = asyncpg.Connection.fetch

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal fetched
            rows = await fetch(*args, **options)
            fetched += len(rows)
            return rows

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)
        seen: list[str] = []
        for filter in (SessionFilter(), SessionFilter(labels={"tenant": "acme"})):
            for page in (
                await store.rows(after="s09", limit=5, filter=filter),
                await store.rows_with(*query, after="s09", limit=5, filter=filter),
            ):
                seen += [row.session for row in page]
    assert seen == [f"s{number}" for number in range(10, 15)] * 4
    assert fetched == 4 * 5


async def test_postgres_finds_the_last_of_many_long_words_whose_letters_have_three_bytes(
    database: Database,
) -> None:
    words = sorted(f"{'ა' * 94}{number:05d}" for number in range(5_000))
    async with database.store() as store:
        await written(store, await store.create("s", Owner("ann")), b"1")
        for word in (words[0], words[-1]):
            assert await store.rows_with([Word(word)], lambda body: words)
    assert database.sql("SELECT max(length(words)) < 5000, sum(length(words)) FROM @word") == [
        (True, 5_000)
    ]
    assert database.sql("SELECT count(*) FROM @word WHERE words::text::tsvector = words") == [(2,)]


async def test_a_search_of_postgres_looks_at_the_sessions_alone_that_have_changed(
    database: Database,
) -> None:
    read: list[str] = []

    def words_of(body: bytes) -> list[str]:
        read.append(body.decode())
        return [body.decode()]

    async def search(store: PostgresStore, word: str) -> list[str]:
        read.clear()
        found = [row.session for row in await store.rows_with([Word(word)], words_of)]
        assert await store.check() == []
        return found

    def marked() -> int:
        return len(database.sql("SELECT id FROM @session WHERE unindexed"))

    async with database.store() as store:
        leases = {}
        for name in "abc":
            leases[name] = await written(store, await store.create(name, Owner("ann")), b"old")
        assert marked() == 3
        assert (await search(store, "old"), len(read), marked()) == ([*"abc"], 3, 0)
        leases["b"] = await written(store, leases["b"], b"new")
        leases["b"] = await written(store, leases["b"], b"newer")
        assert marked() == 1
        assert (await search(store, "newer"), len(read), marked()) == (["b"], 2, 0)
        assert (await search(store, "newer"), len(read)) == (["b"], 0)

        fork = await store.fork("b", 2, "f", Owner("ann"))
        assert (await search(store, "new"), len(read), marked()) == (["b", "f"], 0, 0)
        await written(store, fork, b"apart")
        assert (await search(store, "apart"), read, marked()) == (["f"], ["apart"], 0)
        await store.rewrite(leases["b"], {1: b"rewritten", 3: b"rewritten"})
        assert (await search(store, "rewritten"), marked()) == (["b"], 0)
        assert sorted(read) == ["rewritten"] * 2  # one of them in a log of its own
        assert await search(store, "newer") == []

        # What a fork has of a session that is deleted before the next search.
        await written(store, leases["a"], b"inherited")
        await store.fork("a", 2, "g", Owner("ann"))
        await store.delete("a")
        assert (await search(store, "inherited"), marked()) == (["g"], 0)
        for name in "bcfg":
            await store.delete(name)
        assert marked() == 0


async def test_a_session_that_is_appended_to_during_a_search_is_searched_again(
    database: Database,
) -> None:
    async with database.store() as store:
        await written(store, await store.create("a", Owner("ann")), b"old")
        with database.locked("session", "id = 'a'") as session:
            query = ([Word("old")], lambda body: [body.decode()])
            assert [row.session for row in await store.rows_with(*query)] == ["a"]
            session.run(f"""
                INSERT INTO "{database.schema}".record SELECT log, 2, 1, 'new' FROM
                "{database.schema}".session; UPDATE "{database.schema}".session SET head = 2;
                COMMIT""")
        assert len(database.sql("SELECT id FROM @session WHERE unindexed")) == 1
        query = ([Word("new")], lambda body: [body.decode()])
        assert [row.session for row in await store.rows_with(*query)] == ["a"]
        assert database.sql("SELECT id FROM @session WHERE unindexed") == []
