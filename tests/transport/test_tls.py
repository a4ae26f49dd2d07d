"""TCP with TLS: the same messages, and nothing for those who do not speak it."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmsession import InvalidInput, SessionManager, Unreachable, connect
from llmsession.testing.scripted import ScriptedProvider
from llmsession.transport import Service, SocketServer
from tests.transport.places import CONFIG

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for loopback that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(encoding))
    (folder / "key.pem").write_bytes(key.private_bytes(encoding, *plain))
    return folder / "cert.pem", folder / "key.pem"


async def test_a_service_behind_tls_answers_who_trusts_it_and_nobody_else(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        asyncio.timeout(30),
        SessionManager(provider=ScriptedProvider(["hello"])) as manager,
        Service(manager) as service,
        SocketServer(service, "tcp://127.0.0.1:0", tls=server) as listening,
    ):
        async with connect(listening.address, tls=trusting) as sessions:
            session = await sessions.create(CONFIG)
            text = "x" * 1_000_000
            assert await (await session.send(text)).text() == "hello"
            assert (await session.read_conversation())[0].text == text
        for tls in (ssl.create_default_context(), None):
            with pytest.raises(Unreachable):
                async with connect(listening.address, tls=tls):
                    pass
        with pytest.raises(InvalidInput):
            async with connect(f"unix:{tmp_path}/s.sock", tls=trusting):
                pass
