"""Tenants see their own sessions only, and cannot find out what others have."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import Mock

import pytest

from llmsession import (
    InvalidInput,
    KeyReused,
    SessionConfig,
    SessionError,
    SessionExists,
    SessionInUse,
    SessionManager,
    SessionNotFound,
    SqliteStore,
    Store,
    StoreError,
    ToolResult,
    Unauthenticated,
    connect,
)
from llmsession.errors import RecordDamaged, StoreDamaged
from llmsession.session.manager import runtime_of
from llmsession.session.values.labels import namespace_of, new_session_id
from llmsession.store import Owner, SessionRow
from llmsession.testing.scripted import ScriptedProvider
from llmsession.transport import Credentials, RemoteManager
from llmsession.transport.server.tenancy import in_namespace, visible_error, visible_rows
from llmsession.transport.wire import messages as w
from tests.transport.places import CONFIG, address_of, serving

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

ANNA, BERT, OPERATOR = "anna-token-0123456789", "bert-token-0123456789", "operator-0123456789ab"


class Tokens:
    """Two tenants, and an operator who sees all."""

    def authenticate(self, credentials: Credentials) -> str | None:
        try:
            return {ANNA: "anna", BERT: "bert", OPERATOR: None}[credentials.token or ""]
        except KeyError:
            raise Unauthenticated("the token is not known") from None


class Tenants:
    def __init__(self, manager: SessionManager, address: str) -> None:
        self.manager = manager
        self.address = address
        self.anna: RemoteManager
        self.bert: RemoteManager
        self.operator: RemoteManager


At: TypeAlias = Callable[..., Any]


@pytest.fixture(params=["unix", "grpc"])
def tenants(request: pytest.FixtureRequest, tmp_path: Path) -> At:
    """``async with tenants(script) as at``: a service with tokens, and three who have one."""

    @asynccontextmanager
    async def made(script: Any = (), store: Store | None = None) -> AsyncIterator[Tenants]:
        address = address_of(request.param, tmp_path)
        async with serving(address, script, store=store, authenticator=Tokens()) as served:
            at = Tenants(served.manager, served.address)
            async with (
                connect(at.address, token=ANNA) as at.anna,
                connect(at.address, token=BERT) as at.bert,
                connect(at.address, token=OPERATOR) as at.operator,
            ):
                yield at

    return made


async def seen(sessions: RemoteManager) -> list[str]:
    return [row.session for row in await sessions.list()]


async def test_a_tenant_lists_its_own_sessions_and_the_operator_all(tenants: At) -> None:
    async with tenants() as at:
        hers = await at.anna.create(CONFIG, session_id="main", labels={"x": "1"})
        fork = await hers.fork(session_id="fork")
        await fork.label({"y": "2"})
        his = await at.bert.create(CONFIG)
        assert his.id.startswith("bert/")
        assert await seen(at.anna) == ["anna/fork", "anna/main"]
        assert await seen(at.bert) == [his.id]
        assert await seen(at.operator) == ["anna/fork", "anna/main", his.id]
        assert [row.session for row in await at.anna.list(after="anna/fork")] == ["anna/main"]
        assert [row.session for row in await at.anna.list(limit=1)] == ["anna/fork"]
        assert await at.bert.list(after="bert/zzz") == ()


async def test_a_tenant_finds_its_own_sessions_only(tenants: At) -> None:
    async with tenants(lambda request, tag: "hello") as at:
        for sessions in (at.anna, at.bert):
            for name in ("main", "other"):
                session = await sessions.create(CONFIG, session_id=name)
                await (await session.send("the word")).text()

        async def found(sessions: RemoteManager, after: str = "") -> list[str]:
            return [hit.session for hit in (await sessions.search("word", after=after)).hits]

        hers, his = ["anna/main", "anna/other"], ["bert/main", "bert/other"]
        assert await found(at.anna) == hers
        assert await found(at.bert, after="anna/main") == his
        assert await found(at.operator) == hers + his
        assert await found(at.anna, after="anna/zzz") == []
        page = await at.anna.search("word", after="anna/main", limit=1)
        assert [hit.session for hit in page.hits] == ["anna/other"]
        assert page.next in {None, "anna/other"}


async def test_two_tenants_may_use_one_id_and_neither_finds_the_other(tenants: At) -> None:
    async with tenants(lambda request, tag: "hello") as at:
        hers = await at.anna.create(CONFIG, session_id="main", command_id="c")
        his = await at.bert.create(CONFIG, session_id="main", command_id="c")
        assert (hers.id, his.id) == ("anna/main", "bert/main")
        await (await hers.send("mine", command_id="d")).text()
        await (await his.send("not yours", command_id="d")).text()
        assert [m.text for m in await hers.read_conversation() if m.is_user] == ["mine"]
        # As for its own: what is taken is taken, under the short name and the long one.
        for name in ("main", "anna/main"):
            with pytest.raises(SessionExists):
                await at.anna.create(CONFIG, session_id=name)
            assert (await at.anna.open(name)).id == "anna/main"


async def test_a_random_id_of_a_fork_is_the_tenants_too(tenants: At) -> None:
    async with tenants() as at:
        hers = await at.anna.create(CONFIG)
        fork = await hers.fork()
        assert fork.id.startswith("anna/")
        assert (await at.anna.open(fork.id)).id == fork.id


def every_command(session: Any) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every command of a session, by its type on the wire."""
    return {
        "send": lambda: session.send("x"),
        "submit": lambda: session.submit_tool_results([ToolResult("c", "x")]),
        "interrupt": session.interrupt,
        "outcome": lambda: session.turn(1).outcome(),
        "subscribe": lambda: anext(session.subscribe(after=0)),
        "conversation": session.read_conversation,
        "context": session.read_context,
        "status": session.read_status,
        "will_compact": session.read_will_compact,
        "compact_summaries": session.read_compact_summaries,
        "usage": session.read_usage,
        "open_calls": session.read_open_calls,
        "summary": session.read_summary,
        "compact": session.compact,
        "clear": session.clear,
        "rewind": lambda: session.rewind(1),
        "forget": lambda: session.forget(1),
        "fork": session.fork,
        "label": lambda: session.label({}),
        "configure": lambda: session.configure(model="n"),
        "store_summaries": lambda: session.store_compact_summaries({"c": "x"}),
        "set_summary": lambda: session.set_summary("x", upto=1),
        "close": session.close,
    }


def of_the_store(sessions: Any, name: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every command that names a session and asks no handle of it."""
    return {
        "open": lambda: sessions.open(name),
        "delete": lambda: sessions.delete(name),
        "row": lambda: sessions.row(name),
        "export": lambda: sessions.export_conversation(name),
    }


def test_every_command_of_a_session_is_tried_below() -> None:
    tags = {w.tag_of(kind) for kind in w.COMMANDS if issubclass(kind, w.SessionCommand)}
    assert {*every_command(Mock()), *of_the_store(Mock(), "")} == tags


async def test_every_command_on_anothers_session_is_refused_as_for_one_that_is_not_there(
    tenants: At, caplog: pytest.LogCaptureFixture
) -> None:
    async with tenants(lambda request, tag: "hello") as at:
        hers = await at.anna.create(CONFIG, session_id="hers")
        await (await hers.send("my secret")).text()
        before = await at.manager.store.read("anna/hers")
        stranger = await at.bert.create(CONFIG, session_id="his")

        async def refused(name: str, command: str) -> str:
            stranger.id = name
            caplog.clear()
            asked: dict[str, Callable[[], Awaitable[Any]]] = {
                **every_command(stranger),
                **of_the_store(at.bert, name),
            }
            with pytest.raises(SessionNotFound) as caught:
                await asked[command]()
            (line,) = caplog.records
            assert (line.levelno, line.message) == (logging.WARNING, "command.refused")
            said = vars(line)
            assert (said["tenant"], said["command"]) == ("bert", command)
            assert "secret" not in str(said)
            assert vars(caught.value) == {}
            return str(caught.value).replace(name, "")

        for command in (*every_command(Mock()), *of_the_store(Mock(), "")):
            for name in ("anna/hers", "hers"):
                assert await refused(name, command) == await refused("anna/none", command)
        assert await at.manager.store.read("anna/hers") == before


async def test_the_label_that_says_whose_it_is_cannot_be_changed_or_chosen(tenants: At) -> None:
    async with tenants() as at:
        hers = await at.anna.create(CONFIG, session_id="hers")
        for asked in (
            hers.label({"llmsession.tenant": "bert"}),
            hers.fork(labels={"llmsession.tenant": "bert"}),
            at.anna.create(CONFIG, labels={"llmsession.tenant": "bert"}),
        ):
            with pytest.raises(InvalidInput):
                await asked


async def test_a_session_in_a_tenants_namespace_that_is_not_labelled_so_is_not_its_own(
    tenants: At,
) -> None:
    async with tenants() as at:
        await at.operator.create(CONFIG, session_id="anna/of-the-operator")
        await at.manager.create(CONFIG, session_id="anna/of-bert", tenant="bert")
        assert await seen(at.anna) == []
        for name in ("of-the-operator", "of-bert"):
            with pytest.raises(SessionNotFound):
                await at.anna.open(name)
        made = await at.manager.create(CONFIG, tenant="anna")
        assert (await at.anna.open(made.id)).id == made.id


async def test_nobody_gets_in_with_a_wrong_token_and_it_is_one_line_in_the_log(
    tenants: At, caplog: pytest.LogCaptureFixture
) -> None:
    async with tenants() as at:
        for token in ("wrong-token-0123456789", None, ""):
            caplog.clear()
            with pytest.raises(Unauthenticated) as caught:
                async with connect(at.address, token=token):
                    pass
            (line,) = caplog.records
            assert (line.levelno, line.message) == (logging.WARNING, "connection.refused")
            assert vars(line)["error"] == "Unauthenticated"
            assert "wrong-token" not in str(vars(line)) + str(caught.value)


async def test_a_command_that_is_replayed_does_nothing_or_is_refused(
    tenants: At, caplog: pytest.LogCaptureFixture
) -> None:
    async with tenants(lambda request, tag: "hello") as at:
        hers = await at.anna.create(CONFIG, session_id="hers", command_id="c1")
        turn = await hers.send("my secret", command_id="c2")
        await turn.text()
        seq = (await hers.read_status()).seq
        caplog.clear()
        # The same again is answered as it was, and changes nothing.
        assert (await at.anna.create(CONFIG, session_id="hers", command_id="c1")).id == hers.id
        assert (await hers.send("my secret", command_id="c2")).id == turn.id
        assert (await hers.read_status()).seq == seq
        assert caplog.records == []
        # Under the same id something else is refused, and seen.
        for asked in (hers.send("transfer all", command_id="c2"), hers.clear(command_id="c2")):
            caplog.clear()
            with pytest.raises(KeyReused) as caught:
                await asked
            (line,) = caplog.records
            assert (line.message, vars(line)["error"]) == ("command.refused", "KeyReused")
            assert "secret" not in str(caught.value) + str(vars(line))
        assert (await hers.read_status()).seq == seq
        # By somebody else it reaches nothing.
        his = await at.bert.create(CONFIG, session_id="his")
        his.id = "anna/hers"
        with pytest.raises(SessionNotFound):
            await his.send("my secret", command_id="c2")


async def test_a_tenant_is_not_told_who_holds_its_session(tenants: At, tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    async with (
        SessionManager(provider=ScriptedProvider([]), store=SqliteStore(path)) as other,
        tenants(store=SqliteStore(path)) as at,
    ):
        await other.create(CONFIG, session_id="anna/there", tenant="anna")
        with pytest.raises(SessionInUse) as caught:
            await at.anna.open("there")
        (row,) = await at.anna.list()
        assert row.owner == Owner("another owner")
        assert caught.value.owner == "another owner"
        said = str(caught.value) + str(vars(caught.value)) + str(row)
        owner = runtime_of(other).owner
        for named in (owner.name, str(owner.pid), owner.host):
            assert named not in said
        with pytest.raises(SessionInUse) as whole:
            await at.operator.open("anna/there")
        assert str(owner.pid) in str(whole.value)


# The rules themselves.


def test_namespaces_of_different_tenants_do_not_meet() -> None:
    names = ["a", "b", "a/b", "a%2Fb", "a%", "/", "%", "A", "a/"]
    spaces = [namespace_of(name) for name in names]
    assert len(set(spaces)) == len(names)
    for one in spaces:
        assert one.count("/") == 1
        assert [other for other in spaces if other.startswith(one)] == [one]
    assert new_session_id("a/b").startswith("a%2Fb/")
    assert "/" not in new_session_id(None)


def test_what_a_command_names_is_in_the_namespace() -> None:
    for asked, found in (("x", "a/x"), ("a/x", "a/x"), ("b/x", "a/b/x"), ("", ""), ("a", "a/a")):
        command = in_namespace("a", w.Status(id=1, session=asked))
        assert command.session == found
        assert in_namespace(None, w.Status(id=1, session=asked)).session == asked
        assert in_namespace("a", w.Fork(id=1, session="s", fork=asked)).fork == found
    unsubscribe = w.Unsubscribe(id=1, subscription=2)
    assert in_namespace("a", unsubscribe) is unsubscribe


def test_errors_name_no_process_no_machine_and_no_file() -> None:
    command = w.Status(id=1, session="s")
    where = "disk full at /srv/secret on db-host-7"
    for error in (
        SessionInUse("s", "0123 (pid 4711 on db-host-7)"),
        StoreError(where, committed=None),
        StoreError(where, committed=False),
        StoreDamaged(where),
    ):
        shown = visible_error("anna", command, error)
        assert type(shown) is type(error)
        said = str(shown) + str(vars(shown))
        assert not any(word in said for word in ("4711", "db-host-7", "/srv"))
        if isinstance(error, StoreError):
            assert isinstance(shown, StoreError)
            assert shown.committed is error.committed
        assert visible_error(None, command, error) is error
    for kept in (RecordDamaged("s", 3, "its JSON is cut"), SessionNotFound("s"), SessionError("x")):
        assert visible_error("anna", command, kept) is kept


def test_rows_beyond_the_namespace_are_left_out() -> None:
    rows = [SessionRow("a/x", 1, 1, Owner("me", 7, "then", "host")), SessionRow("z", 1, 1)]
    assert visible_rows(None, rows) is rows
    assert [(row.session, row.owner) for row in visible_rows("a", rows)] == [
        ("a/x", Owner("another owner"))
    ]


async def test_neither_content_nor_tokens_are_logged(
    tenants: At, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "llmsession")
    config = SessionConfig(model="m", system="secret system")
    async with tenants(lambda request, tag: "secret answer") as at:
        hers = await at.anna.create(config, session_id="hers")
        await (await hers.send("secret question")).text()
        with pytest.raises(InvalidInput):
            await hers.submit_tool_results([ToolResult("c", "secret result")])
        with pytest.raises(Unauthenticated):
            async with connect(at.address, token="secret-token-0123456789"):
                pass
    assert caplog.records
    logged = [line.getMessage() + str(vars(line)) for line in caplog.records]
    assert not [line for line in logged if "secret" in line or ANNA in line]
