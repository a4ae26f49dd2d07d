"""Tokens in a file, whom they let in and for how long, and what may listen where."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from llmsession import (
    InvalidConfig,
    InvalidInput,
    SessionNotFound,
    Unauthenticated,
    connect,
)
from llmsession.testing.scripted import never
from llmsession.transport import Credentials, GrpcServer, Limits, Service, SocketServer, TokenFile
from llmsession.transport.server.access import check_exposed, token_hash
from llmsession.transport.v1.session_pb2 import Command
from llmsession.transport.v1.session_pb2_grpc import SessionServiceStub
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.addresses import parse_address
from llmsession.transport.wire.framing import encode
from tests.transport.places import CONFIG, address_of, serving, unserved, until

ANNA, BERT, OPERATOR = "anna-token-0123456789", "bert-token-0123456789", "operator-0123456789ab"
PEER = "203.0.113.7:4711"


def tenant_of(tokens: TokenFile, token: str | None) -> str | None:
    return tokens.authenticate(Credentials(token=token, peer=PEER))


def toml(folder: Path, text: str, name: str = "tokens.toml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def good(folder: Path) -> Path:
    return toml(
        folder,
        f'''
        [[tokens]]
        sha256 = "{token_hash(ANNA)}"
        tenant = "anna"
        [[tokens]]
        token = "{BERT}"
        tenant = "bert"
        [[tokens]]
        token = "{OPERATOR}"
        operator = true
        ''',
    )


def test_a_token_has_its_tenant_and_an_operator_has_none(tmp_path: Path) -> None:
    tokens = TokenFile(good(tmp_path))
    assert tenant_of(tokens, ANNA) == "anna"
    assert tenant_of(tokens, BERT) == "bert"
    assert tenant_of(tokens, OPERATOR) is None
    assert len(tokens) == 3


def test_a_file_may_be_json(tmp_path: Path) -> None:
    text = json.dumps({"tokens": [{"token": ANNA, "tenant": "anna"}]})
    assert tenant_of(TokenFile(toml(tmp_path, text, "tokens.json")), ANNA) == "anna"


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        ANNA[:-1],
        ANNA + " ",
        ANNA.upper(),
        "x" * 2_000_000,
        ANNA + "\x00",
        "\ud800" * 20,
        hashlib.sha256(ANNA.encode()).hexdigest(),  # what stands in the file is no token
    ],
)
def test_a_wrong_token_is_refused_and_not_quoted(tmp_path: Path, token: str | None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        tenant_of(TokenFile(good(tmp_path)), token)
    assert str(caught.value) == "the token is not known, or there is none"
    assert caught.value.__cause__ is None


def test_every_known_token_is_compared_whichever_is_presented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmsession.transport.server import access

    compared: list[bool] = []

    class Counting:
        @staticmethod
        def compare_digest(known: bytes, presented: bytes) -> bool:
            assert len(known) == len(presented) == 32
            compared.append(known == presented)
            return compared[-1]

    monkeypatch.setattr(access, "hmac", Counting)
    tokens = TokenFile(good(tmp_path))
    for token, found in ((ANNA, 1), (OPERATOR, 1), ("nobody-knows-this-one", 0)):
        compared.clear()
        try:
            tenant_of(tokens, token)
        except Unauthenticated:
            assert not found
        assert (len(compared), sum(compared)) == (3, found)


SECRET = "secret-token-0123456789"
WRONG = {
    "no TOML": f'tokens = "{SECRET}',
    "no list": f'tokens = "{SECRET}"',
    "an unknown field": f'[[tokens]]\ntoken = "{SECRET}"\ntenat = "anna"',
    "a token that is no text": "[[tokens]]\ntoken = 12345678901234567890123\ntenant = 'anna'",
    "neither tenant nor operator": f'[[tokens]]\ntoken = "{SECRET}"',
    "both": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "anna"\noperator = true',
    "token and hash": f'[[tokens]]\ntoken = "{SECRET}"\nsha256 = "ab"\ntenant = "anna"',
    "no token": "[[tokens]]\ntenant = 'anna'",
    "a short token": "[[tokens]]\ntoken = 'hunter2'\ntenant = 'anna'",
    "a token with a blank": f'[[tokens]]\ntoken = "{SECRET} {SECRET}"\ntenant = "anna"',
    "a short hash": "[[tokens]]\nsha256 = 'abcd'\ntenant = 'anna'",
    "no hash": f"[[tokens]]\nsha256 = '{'x' * 64}'\ntenant = 'anna'",
    "twice": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "a"\n' * 2,
    "twice, once as a hash": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "a"\n[[tokens]]\n'
    f'sha256 = "{token_hash(SECRET)}"\ntenant = "b"',
    "a tenant without a name": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = ""',
    "a long tenant": f'[[tokens]]\ntoken = "{SECRET}"\ntenant = "{"t" * 65}"',
    "nobody": "tokens = []",
    "nothing": "",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_one_error_that_names_it_and_quotes_no_token(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        TokenFile(toml(tmp_path, text))
    assert "tokens.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
    error: BaseException | None = caught.value
    assert error is not None
    assert "secret" not in str(error)
    assert "hunter2" not in str(error)
    assert error.__cause__ is None  # whose text might
    assert error.__context__ is None or error.__suppress_context__


def test_a_missing_file_and_one_that_is_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        TokenFile(tmp_path / "tokens.toml")
    (tmp_path / "tokens.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="UTF-8"):
        TokenFile(tmp_path / "tokens.toml")


def test_a_file_is_read_again_and_a_wrong_one_leaves_what_there_was(tmp_path: Path) -> None:
    tokens = TokenFile(good(tmp_path))
    toml(tmp_path, "oh no")
    with pytest.raises(InvalidConfig):
        tokens.reload()
    assert tenant_of(tokens, ANNA) == "anna"
    toml(tmp_path, f'[[tokens]]\ntoken = "{BERT}"\ntenant = "bert"')
    assert tokens.reload() == 1
    assert tenant_of(tokens, BERT) == "bert"
    with pytest.raises(Unauthenticated):
        tenant_of(tokens, ANNA)


# A token that is taken away.


@asynccontextmanager
async def guarded(
    kind: str, folder: Path, limits: Limits | None = None
) -> AsyncIterator[tuple[Service, str]]:
    """A service that knows the tokens of ``tokens.toml``, and its address."""
    tokens = await asyncio.to_thread(TokenFile, good(folder))
    script, address = lambda request, tag: never(), address_of(kind, folder)
    async with serving(address, script, authenticator=tokens, limits=limits) as served:
        yield served.service, served.address


async def change(service: Service, folder: Path, text: str) -> int:
    """The tokens are *text* now, as SIGHUP does it."""
    tokens: Any = service.admission.authenticator
    toml(folder, text)
    await asyncio.to_thread(tokens.reload)
    return service.revalidate_clients()


BERTS = f'[[tokens]]\ntoken = "{BERT}"\ntenant = "bert"\n'


@pytest.mark.real_time
@pytest.mark.sockets
@pytest.mark.parametrize("kind", ["unix", "tcp", "grpc"])
async def test_a_token_that_is_taken_away_ends_its_connections_and_no_turn(
    tmp_path: Path, kind: str
) -> None:
    async with (
        guarded(kind, tmp_path) as (service, address),
        connect(address, token=ANNA) as hers,
        connect(address, token=BERT) as his,
    ):
        session = await hers.create(CONFIG, session_id="s")
        turn = await session.send("go on")
        events, waiting = session.subscribe(after=0), asyncio.ensure_future(turn.outcome())
        await anext(events)
        assert await change(service, tmp_path, BERTS) == 1
        with pytest.raises(Unauthenticated):
            await waiting
        with pytest.raises(Unauthenticated):
            async for _ in events:
                pass
        with pytest.raises(Unauthenticated):
            await session.send("more")
        assert await his.list() == ()
        assert service.statistics().connections == 1
        embedded = await service.manager.open("anna/s")
        assert embedded.status().turn == turn.id
        await embedded.interrupt()


@pytest.mark.real_time
@pytest.mark.sockets
async def test_a_token_of_another_tenant_now_ends_what_came_with_it(tmp_path: Path) -> None:
    async with (
        guarded("unix", tmp_path) as (service, address),
        connect(address, token=BERT) as sessions,
    ):
        session = await sessions.create(CONFIG, session_id="s")
        assert await change(service, tmp_path, BERTS) == 0
        assert await change(service, tmp_path, BERTS.replace('"bert"', '"carl"')) == 1
        # It came back by itself, as somebody else.
        with pytest.raises(SessionNotFound):
            await session.read_status()
        assert (await sessions.create(CONFIG, session_id="s")).id == "carl/s"


@pytest.mark.real_time
@pytest.mark.sockets
async def test_single_calls_and_streams_of_a_token_that_is_taken_away_end(tmp_path: Path) -> None:
    async with guarded("grpc", tmp_path) as (service, address):
        metadata = (("authorization", f"Bearer {ANNA}"),)
        async with grpc.aio.insecure_channel(address.removeprefix("grpc://")) as channel:
            calls: Any = SessionServiceStub(channel)
            config = b'{"config": {"model": "m"}}'
            await calls.Create(Command(session="s", body=config), metadata=metadata)
            await calls.Send(Command(session="s", body=b'{"content": "hi"}'), metadata=metadata)
            outcome = calls.Outcome(Command(session="s", body=b'{"turn": 1}'), metadata=metadata)
            events = calls.Subscribe(Command(session="s"), metadata=metadata)
            assert (await events.read()).kind == "subscribed"
            await until(lambda: service.statistics().open_requests == 1)  # the outcome
            assert await change(service, tmp_path, BERTS) == 2
            for ended in (outcome, events.read(), calls.List(Command(), metadata=metadata)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ended
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            await change(service, tmp_path, good(tmp_path).read_text("utf-8"))
            assert (await calls.List(Command(), metadata=metadata)).body != b"[]"
        await until(lambda: not service.statistics().subscriptions)
        await (await service.manager.open("anna/s")).interrupt()


@pytest.mark.real_time
@pytest.mark.sockets
async def test_who_is_sent_away_and_does_not_read_is_dropped_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsession.transport.server.keepalive.LINGER_S", 0.1)
    limits = Limits(keepalive_s=0.2, hello_s=0.1)
    async with guarded("unix", tmp_path, limits) as (service, address):
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writer.write(encode(w.Hello(versions=(w.VERSION,), token=ANNA)) + b"\n")
        await reader.readline()
        # Answers that nobody reads: the goodbye stands behind them.
        config = json.dumps({"model": "m", "system": "x" * 500_000}).encode()
        writer.write(b'{"type":"create","id":0,"session":"s","config":%b}\n' % config)
        await reader.readline()
        for number in (1, 2):
            writer.write(b'{"type":"context","id":%d,"session":"s"}\n' % number)
        ping = asyncio.ensure_future(chatter(writer))
        await until(lambda: service.statistics().outgoing_bytes > 400_000)
        await change(service, tmp_path, BERTS)
        await until(lambda: service.statistics().connections == 0)
        ping.cancel()
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def chatter(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b'{"type":"ping"}\n')
        await asyncio.sleep(0.02)


# What may listen where.


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("unix:/run/s.sock", True),
        ("tcp://127.0.0.1:1", True),
        ("tcp://127.8.9.10:1", True),
        ("tcp://[::1]:1", True),
        ("grpc://localhost:1", True),
        ("tcp://0.0.0.0:1", False),
        ("grpc://[::]:1", False),
        ("tcp://192.0.2.1:1", False),
        ("grpc://localhost.example.org:1", False),
        ("tcp://127.0.0.1.example.org:1", False),
    ],
)
def test_what_other_machines_reach_needs_tls_and_tokens_or_a_flag(
    address: str, local: bool
) -> None:
    where = parse_address(address)
    check_exposed(where, has_tls=True, is_guarded=True, insecure=False)
    check_exposed(where, has_tls=False, is_guarded=False, insecure=True)
    for has_tls, is_guarded, named in (
        (False, False, "TLS and tokens"),
        (True, False, "it needs tokens"),
        (False, True, "it needs TLS"),
    ):
        if local:
            check_exposed(where, has_tls=has_tls, is_guarded=is_guarded, insecure=False)
        else:
            with pytest.raises(InvalidConfig, match=named):
                check_exposed(where, has_tls=has_tls, is_guarded=is_guarded, insecure=False)


async def test_servers_refuse_to_be_open_to_other_machines() -> None:
    async with unserved() as service:
        with pytest.raises(InvalidConfig, match="TLS and tokens"):
            SocketServer(service, "tcp://0.0.0.0:0")
        with pytest.raises(InvalidConfig, match="TLS and tokens"):
            GrpcServer(service, "grpc://0.0.0.0:0")
        SocketServer(service, "tcp://0.0.0.0:0", insecure=True)
        GrpcServer(service, "grpc://0.0.0.0:0", insecure=True)


async def test_a_client_sends_no_token_over_a_network_in_the_clear() -> None:
    for address in ("tcp://192.0.2.1:1", "grpc://192.0.2.1:1"):
        with pytest.raises(InvalidConfig, match="clear") as caught:
            async with connect(address, token=ANNA):
                pass
        assert ANNA not in str(caught.value)


def test_a_token_that_could_be_guessed_has_no_hash() -> None:
    for token in ("short", "x" * 1025, "with a blank in it", "with\ttab-0123456789", "ü" * 20):
        with pytest.raises(InvalidInput) as caught:
            token_hash(token)
        assert token not in str(caught.value)
