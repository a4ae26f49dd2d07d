"""Certificates and keys from files, checked when they are read: each fault has a clear error.

The same values serve sockets, as an ``ssl.SSLContext``, and gRPC, as the bytes of the files.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from llmsession.errors import InvalidConfig

from .secret_files import FilePath, read_secret

__all__ = ["ClientTls", "FilePath", "ServerIdentity", "ServerTls"]

_FAULTS = {9: "is not valid yet", 10: "has expired", 26: "is not for this use"}
"""By OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED and
X509_V_ERR_INVALID_PURPOSE: one for servers at a client, or the other way round."""


class ServerIdentity(NamedTuple):
    """A server's certificate, and the authority of its clients: ``context`` for sockets, the bytes
    of the files for gRPC."""

    certificate_pem: bytes
    key_pem: bytes
    client_ca_pem: bytes | None
    context: ssl.SSLContext


class ServerTls:
    """A server's certificate, and the CAs that its clients need a certificate of.

    - *certificate* is a PEM file with the server's certificate and its intermediate certificates.
    - *key* is a PEM file with its private key, without a passphrase.
    - *client_ca* is a PEM file of CA certificates. With it, clients need a certificate that one of
      these CAs signed (mTLS).

    The constructor and ``reload`` read files: call them outside of event loops. They raise
    InvalidConfig for a file that is missing or has another content, for a key of another
    certificate, and for a certificate that has expired, is not valid yet or is only for clients.
    """

    def __init__(
        self, certificate: FilePath, key: FilePath, *, client_ca: FilePath | None = None
    ) -> None:
        self._files = (certificate, key, client_ca)
        self.identity = _identity(certificate, key, client_ca)
        """Used by the next handshake. It is a single value, so that no handshake mixes old and new
        files."""

    def reload(self) -> None:
        """Read the files again, for later handshakes. Open connections stay. Raises the errors of
        the constructor; then the old files stay in use."""
        self.identity = _identity(*self._files)


def _identity(certificate: FilePath, key: FilePath, client_ca: FilePath | None) -> ServerIdentity:
    pem, key_pem = _certificates(certificate), read_secret(key, "TLS key")
    client_ca_pem = None if client_ca is None else _certificates(client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_identity(context, certificate, key)
    if client_ca is not None:
        _trust(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    _check_use(certificate, key, pem, is_server=True)
    return ServerIdentity(pem, key_pem, client_ca_pem, context)


class ClientTls:
    """The CAs that a client trusts, and its own certificate.

    *ca* is a PEM file of CA certificates that are trusted instead of the system's. *certificate*
    and *key* are the client's own, for a server that requires them (mTLS). The constructor reads
    files: call it outside of event loops. It raises the errors of ``ServerTls``.
    """

    def __init__(
        self,
        *,
        ca: FilePath | None = None,
        certificate: FilePath | None = None,
        key: FilePath | None = None,
    ) -> None:
        if (certificate is None) != (key is None):
            raise InvalidConfig("a client's TLS certificate goes with its key: give both, or none")
        self.ca_pem = None if ca is None else _certificates(ca)
        self.certificate_pem = None if certificate is None else _certificates(certificate)
        self.key_pem = None if key is None else read_secret(key, "TLS key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if ca is None:
            context.load_default_certs()
        else:
            _trust(context, ca)
        if certificate is not None and key is not None:
            _load_identity(context, certificate, key)
            _check_use(certificate, key, self.certificate_pem or b"", is_server=False)
        self.context = context
        """For sockets."""


def _read(path: FilePath, what: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidConfig(
            f"{what} {os.fspath(path)!r} cannot be read: {error.strerror}"
        ) from error


def _certificates(path: FilePath) -> bytes:
    pem = _read(path, "TLS certificate")
    if b"-----BEGIN CERTIFICATE-----" not in pem:
        raise InvalidConfig(f"TLS certificate {os.fspath(path)!r} holds no certificate in PEM")
    return pem


def _trust(context: ssl.SSLContext, path: FilePath) -> None:
    try:
        context.load_verify_locations(os.fspath(path))
    except ssl.SSLError as error:
        message = f"TLS certificate {os.fspath(path)!r} is damaged: {error.reason}"
        raise InvalidConfig(message) from error


def _load_identity(context: ssl.SSLContext, certificate: FilePath, key: FilePath) -> None:
    certificate, key = os.fspath(certificate), os.fspath(key)

    def no_passphrase() -> str:
        # Without a callback OpenSSL would ask for the passphrase on the terminal.
        raise InvalidConfig(f"TLS key {key!r} has a passphrase; a service needs one without")

    try:
        context.load_cert_chain(certificate, key, password=no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"TLS key {key!r} does not belong to the certificate {certificate!r}"
        else:
            message = f"TLS certificate {certificate!r} or key {key!r} is damaged: {error.reason}"
        raise InvalidConfig(message) from error


def _check_use(certificate: FilePath, key: FilePath, pem: bytes, *, is_server: bool) -> None:
    """Presents the certificate, in memory, to a peer that trusts just this one: only its dates and
    its purpose can be wrong then."""
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    sees = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_server else ssl.PROTOCOL_TLS_SERVER)
    shows.check_hostname = sees.check_hostname = False
    shows.verify_mode, sees.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
    # Accept the leaf as its own root: only its dates are to be checked, not those of its CA.
    sees.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    sees.load_verify_locations(cadata=_first(pem))
    for context in (shows, sees):
        _load_identity(context, certificate, key)
    server, client = (shows, sees) if is_server else (sees, shows)
    code = _meet(server, client)
    if code in _FAULTS:
        raise InvalidConfig(f"TLS certificate {os.fspath(certificate)!r} {_FAULTS[code]}")


def _first(pem: bytes) -> str:
    end = b"-----END CERTIFICATE-----"
    start = pem.index(b"-----BEGIN CERTIFICATE-----")
    return pem[start : pem.index(end, start) + len(end)].decode("ascii")


def _meet(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    """A handshake without a network. Returns the code of the certificate's fault, 0 for none."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides: list[Callable[[], None]] = [
        client.wrap_bio(down, up).do_handshake,
        server.wrap_bio(up, down, server_side=True).do_handshake,
    ]
    for _ in range(8):  # enough: each side sends two flights
        for side in tuple(sides):
            try:
                side()
                sides.remove(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_code
            except ssl.SSLError:
                return 0
    return 0
