"""TLS and mTLS on both transports: who is trusted, who is not, and what is said about files."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from llmsession import InvalidConfig, InvalidInput, Unreachable, connect
from llmsession.transport import (
    ClientTls,
    Limits,
    ServerTls,
)
from llmsession.transport.wire.messages import VERSION
from tests.steady_time import steady_backend
from tests.transport import places
from tests.transport.certificates import Authority

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Handshakes are the loop's, and a service runs on uvloop where that is there."""
    return ("asyncio", {"use_uvloop": True}) if request.param else steady_backend("asyncio")


PATIENT = Limits(hello_s=100.0)
"""uvloop's clock is real: a machine that stands still would miss a shorter time."""
SCHEMES = pytest.mark.parametrize("scheme", ["tcp", "grpc"])


@asynccontextmanager
async def serving(
    scheme: str, tls: ServerTls | ssl.SSLContext, limits: Limits = PATIENT
) -> AsyncIterator[str]:
    address, script = f"{scheme}://127.0.0.1:0", lambda request, tag: "hello"
    async with places.serving(address, script, limits=limits, tls=tls) as served:
        yield served.address


async def server_tls(*files: Path, client_ca: Path | None = None) -> ServerTls:
    return await asyncio.to_thread(ServerTls, *files, client_ca=client_ca)


async def client_tls(
    *, ca: Path, certificate: Path | None = None, key: Path | None = None
) -> ClientTls:
    return await asyncio.to_thread(ClientTls, ca=ca, certificate=certificate, key=key)


async def client_of(issuer: Authority, name: str, ca: Authority) -> ClientTls:
    """A client that has a certificate of *issuer*, and trusts *ca*."""
    certificate, key = issuer.issue(name, client=True)
    return await client_tls(ca=ca.path, certificate=certificate, key=key)


async def is_let_in(address: str, tls: ClientTls | None) -> bool:
    try:
        async with connect(address, tls=tls) as sessions:
            session = await sessions.create(places.CONFIG)
            text = "x" * 1_000_000
            assert await (await session.send(text)).text() == "hello"
            assert (await session.read_conversation())[0].text == text
            return True
    except Unreachable:
        return False


@SCHEMES
async def test_a_service_behind_tls_answers_who_trusts_it_and_nobody_else(
    tmp_path: Path, scheme: str
) -> None:
    ca = Authority(tmp_path)
    other = Authority(tmp_path, "other")
    trusting, doubting = await client_tls(ca=ca.path), await client_tls(ca=other.path)
    async with serving(scheme, await server_tls(*ca.issue("server"))) as address:
        assert await is_let_in(address, trusting)
        assert not await is_let_in(address, doubting)
        assert not await is_let_in(address, None)
    with pytest.raises(InvalidInput):
        async with connect(f"unix:{tmp_path}/s.sock", tls=trusting):
            pass


async def test_a_socket_takes_an_ssl_context_of_ones_own_and_grpc_does_not(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ca.issue("server"))
    mine = ssl.create_default_context(cafile=str(ca.path))
    async with serving("tcp", context) as address, connect(address, tls=mine) as sessions:
        assert await sessions.list() == ()
    with pytest.raises(InvalidInput, match="ClientTls"):
        async with connect("grpc://127.0.0.1:1", tls=mine):
            pass


@SCHEMES
async def test_with_mtls_only_a_certificate_of_the_right_authority_is_let_in(
    tmp_path: Path,
    scheme: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    ca, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    friend = await client_of(ca, "friend", ca)
    # They are made of good files: a client that lies has no reason to check them.
    foe = await client_of(stranger, "foe", ca)
    expired = await expired_client(ca)
    server = await server_tls(*ca.issue("server"), client_ca=ca.path)
    async with serving(scheme, server) as address:
        assert await is_let_in(address, friend)
        told = caplog.records if scheme == "tcp" else []
        told.clear()
        for wrong, why in (
            (await client_tls(ca=ca.path), "certificate"),
            (foe, "certificate"),
            (expired, "expired"),
        ):
            capfd.readouterr()
            assert not await is_let_in(address, wrong)
            if scheme == "tcp":
                (line,) = told
                assert (line.levelno, line.message) == (logging.WARNING, "connection.refused")
                assert why in line.__dict__["why"]
                told.clear()
            else:  # gRPC's own code shakes hands, and writes its own line
                assert "Handshake failed" in capfd.readouterr().err
        assert await is_let_in(address, friend)


async def expired_client(ca: Authority) -> ClientTls:
    """What a client shows whose certificate was good when it started."""
    tls = await client_of(ca, "late", ca)
    certificate, key = ca.issue("late", client=True, begins_h=-2, ends_h=-1)
    tls.certificate_pem, tls.key_pem = certificate.read_bytes(), key.read_bytes()
    tls.context.load_cert_chain(certificate, key)
    return tls


@SCHEMES
async def test_a_server_whose_certificate_has_expired_meanwhile_is_not_trusted(
    tmp_path: Path, scheme: str
) -> None:
    ca = Authority(tmp_path)
    tls = await server_tls(*ca.issue("server"))
    certificate, key = ca.issue("server", begins_h=-2, ends_h=-1)
    tls.identity.context.load_cert_chain(certificate, key)
    tls.identity = tls.identity._replace(
        certificate_pem=certificate.read_bytes(), key_pem=key.read_bytes()
    )
    async with serving(scheme, tls) as address:
        assert not await is_let_in(address, await client_tls(ca=ca.path))


@SCHEMES
async def test_many_clients_shake_hands_at_once(tmp_path: Path, scheme: str) -> None:
    ca = Authority(tmp_path)
    trusting = await client_tls(ca=ca.path)
    async with serving(scheme, await server_tls(*ca.issue("server"))) as address:
        let_in = await asyncio.gather(*(is_let_in(address, trusting) for _ in range(10)))
        assert all(let_in)


@SCHEMES
async def test_a_renewed_certificate_is_shown_once_it_was_read_and_connections_stay(
    tmp_path: Path, scheme: str
) -> None:
    ca, another = Authority(tmp_path), Authority(tmp_path, "another")
    before, after = await client_tls(ca=ca.path), await client_tls(ca=another.path)
    certificate, key = ca.issue("server")
    tls = await server_tls(certificate, key)
    async with serving(scheme, tls) as address, connect(address, tls=before) as sessions:
        assert not await is_let_in(address, after)
        another.issue("server")  # in place of the files that there were
        assert await is_let_in(address, before)  # nobody has said that they are to be read
        await asyncio.to_thread(tls.reload)
        assert await is_let_in(address, after)
        assert not await is_let_in(address, before)
        assert await sessions.list() != ()  # who came with the old one stays
        key.write_text("oh no")
        with pytest.raises(InvalidConfig, match=r"server\.key"):
            await asyncio.to_thread(tls.reload)
        assert await is_let_in(address, after)


@SCHEMES
async def test_a_renewed_authority_of_clients_counts_once_it_was_read(
    tmp_path: Path, scheme: str
) -> None:
    ca, old, new = Authority(tmp_path), Authority(tmp_path, "old"), Authority(tmp_path, "new")
    early = await client_of(old, "early", ca)
    late = await client_of(new, "late", ca)
    tls = await server_tls(*ca.issue("server"), client_ca=old.path)
    async with serving(scheme, tls) as address:
        assert await is_let_in(address, early)
        assert not await is_let_in(address, late)
        old.path.write_bytes(new.path.read_bytes())
        await asyncio.to_thread(tls.reload)
        assert await is_let_in(address, late)
        assert not await is_let_in(address, early)


async def test_who_never_shakes_hands_is_dropped(tmp_path: Path) -> None:
    tls = await server_tls(*Authority(tmp_path).issue("server"))
    async with serving("tcp", tls, Limits(hello_s=0.1)) as address:
        reader, writer = await asyncio.open_connection(*host_and_port(address))
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_who_never_shakes_hands_holds_up_nobody(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    trusting = await client_tls(ca=ca.path)
    async with serving("tcp", await server_tls(*ca.issue("server"))) as address:
        _, writer = await asyncio.open_connection(*host_and_port(address))
        assert await is_let_in(address, trusting)
        writer.close()
        await writer.wait_closed()


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("tcp://").partition(":")
    return host, int(port)


# Files. Each fault is one error that names the file and what is wrong with it.


@pytest.mark.parametrize("client", [False, True])
def test_each_fault_of_a_certificate_or_a_key_is_one_clear_error(
    tmp_path: Path, client: bool
) -> None:
    ca = Authority(tmp_path)
    certificate, key = ca.issue("mine", client=client)
    _, another_key = ca.issue("another", client=client)
    expired, expired_key = ca.issue("expired", begins_h=-2, ends_h=-1, client=client)
    early, early_key = ca.issue("early", begins_h=1, ends_h=2, client=client)
    other, other_key = ca.issue("other", client=not client)
    empty, broken = tmp_path / "empty.pem", tmp_path / "broken.pem"
    empty.write_text("")
    broken.write_bytes(certificate.read_bytes().replace(b"M", b"N", 3))
    locked = tmp_path / "locked.key"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    missing = tmp_path / "none.pem"
    for files, said in (
        ((missing, key), "none.pem.*No such file"),
        ((certificate, missing), "none.pem.*No such file"),
        ((empty, key), "empty.pem.*no certificate"),
        ((broken, key), "broken.pem"),
        ((certificate, empty), "empty.pem"),
        ((certificate, another_key), "another.key.*does not belong to"),
        ((certificate, locked), "locked.key.*passphrase"),
        ((expired, expired_key), "expired.pem.*has expired"),
        ((early, early_key), "early.pem.*not valid yet"),
        ((other, other_key), "other.pem.*not for this use"),
    ):
        with pytest.raises(InvalidConfig, match=said):
            if client:
                ClientTls(certificate=files[0], key=files[1])
            else:
                ServerTls(*files)
    with pytest.raises(InvalidConfig, match=r"none.pem.*No such file"):
        ServerTls(certificate, key, client_ca=missing)
    with pytest.raises(InvalidConfig, match="both"):
        ClientTls(certificate=certificate)
    good = (
        ClientTls(certificate=certificate, key=key)
        if client
        else ServerTls(certificate, key).identity
    )
    assert good.certificate_pem == certificate.read_bytes()


async def test_a_client_that_stops_reading_is_waited_for_and_not_asked_again_and_again(
    tmp_path: Path,
) -> None:
    """By default a TLS transport reports that it is full at 512 KiB, and the service stops writing
    earlier. It would then start a task that waits for nothing in each pass of the loop."""
    ca = Authority(tmp_path)
    loop, drains = asyncio.get_running_loop(), 0

    def count_drains(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        nonlocal drains
        drains += "drain" in repr(work)
        return asyncio.Task(work, loop=loop, **options)

    async with serving("tcp", await server_tls(*ca.issue("server"))) as address:
        async with connect(address, tls=await client_tls(ca=ca.path)) as sessions:
            session = await sessions.create(places.CONFIG, session_id="s")
            await (await session.send("x" * 100_000)).text()
        trusting = ssl.create_default_context(cafile=str(ca.path))
        _, writer = await asyncio.open_connection(*host_and_port(address), ssl=trusting, limit=1024)
        writer.write(b'{"type":"hello","versions":[%d]}\n' % VERSION)
        for id in range(150):
            writer.write(b'{"type":"subscribe","id":%d,"session":"s","after":0}\n' % id)
        loop.set_task_factory(count_drains)  # type: ignore[arg-type]
        try:
            while not drains:  # noqa: ASYNC110  # the service is in this loop, too
                await asyncio.sleep(0)
            for _ in range(1000):
                await asyncio.sleep(0)
        finally:
            loop.set_task_factory(None)
        assert drains < 100, drains
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
