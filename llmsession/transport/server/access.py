"""Who may use a service: tokens from a file, each with a tenant; and what may listen where."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import tomllib
from typing import Any, Protocol

import msgspec

from llmsession.errors import InvalidConfig, InvalidInput, Unauthenticated
from llmsession.session.values.labels import checked_tenant

from ..wire.addresses import Address
from ..wire.secret_files import FilePath, read_secret

__all__ = [
    "Authenticator",
    "Credentials",
    "TokenFile",
    "check_exposed",
    "check_token_is_safe",
    "token_hash",
]

MIN_TOKEN_CHARS = 16
"""A hash without salt and work protects a token that cannot be guessed, and no other."""
MAX_TOKEN_CHARS = 1024
MAX_TENANT_CHARS = 64
"""The ids of its sessions, which have at most 200, begin with it."""
REFUSED = "the token is not known, or there is none"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The token of a client's hello, and where its connection comes from."""

    token: str | None
    peer: str


class Authenticator(Protocol):
    """Decides who may connect. Called in the event loop: it must not block."""

    def authenticate(self, credentials: Credentials) -> str | None:
        """The tenant, which sees its own sessions only, or None for a client that sees all.

        Raises Unauthenticated, with a text that gives nothing away.
        """


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str | None = None
    sha256: str | None = None
    tenant: str | None = None
    operator: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[_Entry]


class TokenFile:
    """The tokens in the file at *path*: an ``Authenticator``.

    It is TOML, or JSON where its name ends in ``.json``, of the same shape:

        [[tokens]]
        sha256 = "..."      # of the token, in hexadecimal digits; or: token = "..."
        tenant = "anna"     # sees its own sessions only; or: operator = true, who sees all

    Each token stands there once; a tenant may have many. Reads the file: make it, and ``reload``
    it, outside of event loops. Raises InvalidConfig, which quotes no token, also for a file that
    its group or everybody may write to; one that everybody may read is a warning in the log.
    """

    def __init__(self, path: FilePath) -> None:
        self._path = path
        self._known = _read_tokens(path)

    def __len__(self) -> int:
        return len(self._known)

    def reload(self) -> int:
        """Read the file again; returns how many tokens it has. Connected clients stay connected
        until ``Service.revalidate_clients``. Raises InvalidConfig, and keeps the old tokens."""
        self._known = _read_tokens(self._path)
        return len(self._known)

    def authenticate(self, credentials: Credentials) -> str | None:
        """See ``Authenticator``. Takes the same time for every token, known or not: all are
        compared, by their hashes, in constant time."""
        token = credentials.token or ""
        presented = _digest(token[:MAX_TOKEN_CHARS])
        match: tuple[str | None] | None = None
        for digest, tenant in self._known:
            if hmac.compare_digest(digest, presented):
                match = (tenant,)
        if match is None or len(token) > MAX_TOKEN_CHARS:
            raise Unauthenticated(REFUSED)
        return match[0]


def token_hash(token: str) -> str:
    """What stands in a token file as ``sha256``. Raises InvalidInput for a token that is short
    enough to be guessed, or no text of one line."""
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS:
        message = f"a token has {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} characters, not {len(token)}"
        raise InvalidInput(message)
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidInput("a token has printable ASCII characters without blanks")  # HTTP's rule
    return _digest(token).hex()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _read_tokens(path: FilePath) -> tuple[tuple[bytes, str | None], ...]:
    name = os.fspath(path)
    try:
        text = read_secret(path, "token file").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidConfig(f"token file {name!r} is no UTF-8 text") from None
    # Without the errors' own texts, here and below: they may quote a token.
    try:
        content: Any = json.loads(text) if name.endswith(".json") else tomllib.loads(text)
    except (ValueError, RecursionError):
        kind = "JSON" if name.endswith(".json") else "TOML"
        raise InvalidConfig(f"token file {name!r} is no {kind}") from None
    try:
        entries = msgspec.convert(content, _File).tokens
    except msgspec.ValidationError:
        message = "is no list of tokens, each with token or sha256, and tenant or operator = true"
        raise InvalidConfig(f"token file {name!r} {message}") from None
    known: dict[bytes, str | None] = {}
    for number, entry in enumerate(entries, 1):
        try:
            digest, tenant = _checked(entry)
            if digest in known:
                raise InvalidInput("it stands there twice")
        except InvalidInput as error:
            raise InvalidConfig(f"token file {name!r}, token {number}: {error}") from None
        known[digest] = tenant
    if not known:
        raise InvalidConfig(f"token file {name!r} has no token: nobody could connect")
    return tuple(known.items())


def _checked(entry: _Entry) -> tuple[bytes, str | None]:
    if (entry.token is None) == (entry.sha256 is None):
        raise InvalidInput("give either token or sha256")
    if (entry.tenant is None) != entry.operator:
        raise InvalidInput("give either tenant or operator = true")
    if entry.tenant is not None and len(checked_tenant(entry.tenant)) > MAX_TENANT_CHARS:
        raise InvalidInput(f"its tenant has more than {MAX_TENANT_CHARS} characters")
    if entry.token is not None:
        return bytes.fromhex(token_hash(entry.token)), entry.tenant
    try:
        digest = bytes.fromhex(entry.sha256 or "")
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise InvalidInput("its sha256 is not 64 hexadecimal digits")
    return digest, entry.tenant


def check_exposed(address: Address, *, has_tls: bool, is_guarded: bool, insecure: bool) -> None:
    """Raises InvalidConfig where others than this machine could reach *address* and not both TLS
    and tokens protect it, unless *insecure* says that this is meant."""
    if address.is_local or insecure or (has_tls and is_guarded):
        return
    missing = [*(() if has_tls else ("TLS",)), *(() if is_guarded else ("tokens",))]
    raise InvalidConfig(
        f"{address} can be reached from other machines: it needs {' and '.join(missing)}, or"
        " insecure=True if something else protects it"
    )


def check_token_is_safe(
    address: Address, *, has_tls: bool, has_token: bool, insecure: bool
) -> None:
    """Raises InvalidConfig where a client would send its token over a network in the clear."""
    if has_token and not (has_tls or address.is_local or insecure):
        raise InvalidConfig(
            f"the token would be sent to {address} in the clear: use TLS, or insecure=True if"
            " something else protects it"
        )
