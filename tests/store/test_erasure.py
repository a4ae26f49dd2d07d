"""What was deleted, purged or forgotten is in no file any more after a vacuum: whatever it was that
was said, by whomever, in every store that has files."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from llmsession import (
    LLMSession,
    SessionConfig,
    SessionManager,
    Store,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
)
from llmsession.errors import ProviderError, TurnFailed
from llmsession.session.actor.snapshot_writer import snapshots_every
from llmsession.session.snapshots import format
from llmsession.session.values.config import CompactionConfig
from llmsession.store import PostgresStore, SnapshotStore, SqliteStore
from llmsession.testing import ScriptedProvider, call, never, say
from llmsession.testing.scripted import Scripted, think
from llmsession.turns.request import Request, StepTag
from tests.store.conftest import Database
from tests.store.sqlite.stage import raw

pytestmark = pytest.mark.real_time
SAID = (
    "seed", "question", "thought", "reply", "input", "result", "summary", "ran", "picture",
    "steer", "dropped", "receipt", "failed",
)  # fmt: skip
KEY = secrets.token_bytes(32)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is tested here lies in files


@pytest.fixture(autouse=True)
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are written often, and not compressed: so what they have can be found in a file."""
    monkeypatch.setattr(format, "_LEVEL", 0)
    with snapshots_every(2):
        yield


def mark(what: str) -> str:
    """A word that only *what* says. It could be part of base64, which a picture is."""
    return f"XqZ{what}ZqX"


class Place:
    """A store, and what can be read in its files without it."""

    def __init__(self, make: Callable[[], Store], files: Callable[[], bytes]) -> None:
        self.make = make
        self.files = files

    def marks(self) -> set[str]:
        """What can be found there."""
        content = self.files()
        return {what for what in (*SAID, "label", "later") if mark(what).encode() in content}


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def place_with(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[bytes | None], Place]:
    if kind == "sqlite":
        path = tmp_path / "s.db"

        def read() -> bytes:
            # The database, the WAL, its index; a journal, should there be one. A body may lie in
            # pieces there, so what can be selected is read, too.
            found = [file.read_bytes() for file in sorted(tmp_path.glob("s.db*"))]
            with raw(path) as db:
                found += [body for (body,) in db.execute("SELECT body FROM record")]
            return b"".join(found)

        return lambda key: Place(lambda: SqliteStore(path, key=key), read)
    database: Database = request.getfixturevalue("frail_database")

    def make(key: bytes | None) -> Store:
        return PostgresStore(database.dsn, schema=database.schema, key=key)

    return lambda key: Place(lambda: make(key), database.everything)


@pytest.fixture
def place(place_with: Callable[[bytes | None], Place]) -> Place:
    return place_with(None)


def model(request: Request, tag: StepTag) -> Scripted:
    if tag.turn == 1 and tag.step == 1:
        calls = call("ask", {"path": mark("input")}, id="c1") + call("run", {}, id="c2")
        return think(mark("thought")) + say("let me look") + calls
    if tag.turn == 1:
        return say(mark("reply"))
    if tag.turn == 2:
        return call("run", {"path": mark("receipt")}, id="c3") if tag.step == 1 else never()
    if tag.turn == 4:
        return say("hm").raising(ProviderError(mark("failed"), kind="fatal"))
    return say("fine")


async def run(path: str = "") -> str:
    await anyio.lowlevel.checkpoint()
    return mark("ran")


TOOLS = (
    Tool(name="ask", input_schema={"type": "object"}),
    Tool(name="run", input_schema={"type": "object"}, run=run),
)


@asynccontextmanager
async def managing(place: Place) -> AsyncIterator[SessionManager]:
    with anyio.fail_after(150):
        store = place.make()
        async with SessionManager(provider=ScriptedProvider(model), store=store) as manager:
            yield manager


async def say_everything(manager: SessionManager) -> LLMSession:
    """A session ``s`` in whose log every one of the marks is."""
    config = SessionConfig(
        model="m",
        tools=TOOLS,
        compaction=CompactionConfig(keep_recent_turns=1, keep_recent_steps=1, min_gain=0.0),
    )
    session = await manager.create(
        config, session_id="s", labels={"name": mark("label")}, seed=mark("seed")
    )
    # Random, so that nothing is gained where a database compresses what is long.
    picture = f"{_random(2000)}{mark('picture')}{_random(2003)}"
    source = {"type": "base64", "media_type": "image/png", "data": picture}
    turn = await session.send(
        [{"type": "text", "text": mark("question")}, {"type": "image", "source": source}]
    )
    await until_called(turn, "c1")
    await session.send(mark("steer"), when_busy="steer")
    long = mark("result") + _random(4000)
    results = [ToolResult("c1", long, compact_summary=mark("summary"))]
    await session.submit_tool_results(results)
    assert await turn.text() == mark("reply")
    turn = await session.send(mark("dropped"))
    await until_called(turn, "c3")
    await session.interrupt(command_id="stop")  # its answer holds what was dropped
    assert await (await session.send("what of it?")).text() == "fine"  # the receipt is with it
    with pytest.raises(TurnFailed):
        await (await session.send("try this")).text()
    assert (await session.compact()).applied
    return session


def _random(length: int) -> str:
    """As base64 looks."""
    return secrets.token_urlsafe(length)[:length].replace("-", "+").replace("_", "/")


async def until_called(turn: Turn, call_id: str) -> None:
    async for event in turn:
        if isinstance(event, ToolUse) and event.id == call_id:
            return
    raise AssertionError(f"{call_id} was never called")


async def test_what_was_purged_is_in_no_snapshot_either(place: Place) -> None:
    async with managing(place) as manager:
        session = await say_everything(manager)
        store = manager.store
        assert isinstance(store, SnapshotStore)

        async def in_snapshot() -> set[str]:
            snapshot = await store.snapshot("s") or b""
            return {what for what in SAID if mark(what).encode() in snapshot}

        with anyio.fail_after(100):
            while not await in_snapshot() >= {"seed", "dropped", "summary"}:
                pass  # the newest one is still being saved
        await session.clear(purge=True)
        assert await in_snapshot() == set()  # there is none, or already one of what is left
        await session.close()
        session = await manager.open("s", tools=TOOLS)
        assert await (await session.send("hello again")).text() == "fine"
        await store.vacuum()
        assert await store.snapshot("s")
        assert place.marks() == {"label"}


async def test_a_deleted_session_is_in_no_file(place: Place) -> None:
    async with managing(place) as manager:
        await say_everything(manager)
        assert place.marks() == {*SAID, "label"}
        await manager.delete("s")
        await manager.store.vacuum()
        assert place.marks() == set()
    assert place.marks() == set()


async def test_what_was_purged_is_in_no_file(place: Place) -> None:
    async with managing(place) as manager:
        session = await say_everything(manager)
        assert place.marks() == {*SAID, "label"}
        await session.clear(purge=True)
        await manager.store.vacuum()
        assert place.marks() == {"label"}
        assert await (await session.send("hello again")).text() == "fine"
    assert place.marks() == {"label"}


async def test_what_was_forgotten_is_in_no_file_and_what_was_said_since_is(place: Place) -> None:
    async with managing(place) as manager:
        session = await say_everything(manager)
        turn = await session.send(mark("later"))
        assert await turn.text() == "fine"
        assert place.marks() == {*SAID, "label", "later"}
        await session.forget(turn.id)
        await manager.store.vacuum()
        assert place.marks() == {"label", "later"}
        assert [message.text for message in session.conversation()] == [mark("later"), "fine"]


async def test_what_a_fork_shares_stays_as_long_as_the_fork(place: Place) -> None:
    async with managing(place) as manager:
        session = await say_everything(manager)
        fork = await session.fork(session_id="f", labels={})
        said = [message.text for message in fork.conversation()]
        assert any(mark("reply") in text for text in said)
        await session.clear(purge=True)
        await manager.delete("s")
        await manager.store.vacuum()
        assert place.marks() == {*SAID, "label"}  # a label is in the first record, too
        assert [message.text for message in fork.conversation()] == said
        await fork.close()
        again = await manager.open("f", tools=TOOLS)
        assert [message.text for message in again.conversation()] == said
        await manager.delete("f")
        await manager.store.vacuum()
        assert place.marks() == set()


async def test_a_fork_that_forgets_what_it_shares_leaves_it_to_its_parent(place: Place) -> None:
    async with managing(place) as manager:
        session = await say_everything(manager)
        fork = await session.fork(session_id="f")
        await fork.clear(purge=True)
        await manager.store.vacuum()
        assert place.marks() == {*SAID, "label"}
        await session.clear(purge=True)
        await manager.store.vacuum()
        assert place.marks() == {"label"}


async def test_of_an_encrypted_session_nothing_can_be_read_at_any_time(
    place_with: Callable[[bytes | None], Place], kind: str
) -> None:
    place = place_with(KEY)
    readable = {"label"} if kind == "sqlite" else set()
    async with managing(place) as manager:
        session = await say_everything(manager)
        await session.fork(session_id="f")
        assert place.marks() == readable
        await session.clear(purge=True)
        assert place.marks() == readable
        for name in ("s", "f"):
            await manager.delete(name)
        await manager.store.vacuum()
        assert place.marks() == set()


async def test_nothing_that_was_said_is_in_the_servers_statistics(frail_database: Database) -> None:
    """PostgreSQL keeps samples of a column's values; what was analyzed stays in them."""
    database = frail_database
    place = Place(lambda: PostgresStore(database.dsn, schema=database.schema), database.everything)
    async with managing(place) as manager:
        await say_everything(manager)
        await manager.store.vacuum()  # it analyzes, as the server does by itself
        assert place.marks() == {*SAID, "label"}
        samples = database.sql(
            "SELECT concat(most_common_vals::text, histogram_bounds::text)"
            " FROM pg_stats WHERE schemaname = $1",
            database.schema,
        )
        assert any(text for (text,) in samples)  # of other columns
        for what in (*SAID, "label"):
            assert [text for (text,) in samples if mark(what).encode().hex() in text] == []
