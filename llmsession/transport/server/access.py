"""Authentication by tokens from a file, each with a tenant, and checks of unprotected addresses."""

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
"""Tokens are stored as plain SHA-256, which protects only tokens that are too long to guess."""
MAX_TOKEN_CHARS = 1024
MAX_TENANT_CHARS = 64
"""Session ids begin with the tenant's name and have at most 200 characters."""
REFUSED = "the token is not known, or there is none"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The token of a client's hello, and the address that its connection comes from."""

    token: str | None
    peer: str


class Authenticator(Protocol):
    """Decides which clients may connect. It is called in the event loop and must not block."""

    def authenticate(self, credentials: Credentials) -> str | None:
        """The client's tenant, which sees only its own sessions, or None for a client that sees
        all.

        Raises Unauthenticated. The client sees its text, so it must not contain secrets.
        """


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str | None = None
    sha256: str | None = None
    tenant: str | None = None
    operator: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[_Entry]


class TokenFile:
    """An ``Authenticator`` with the tokens in the file at *path*.

    The file is TOML, or JSON of the same structure if its name ends in ``.json``::

        [[tokens]]
        sha256 = "..."      # of the token, in hexadecimal digits; or: token = "..."
        tenant = "anna"     # sees only its own sessions; or: operator = true, which sees all

    A token may occur only once; a tenant may have many tokens. The constructor and ``reload`` read
    the file: call them outside of event loops. They raise InvalidConfig, which quotes no token, for
    an invalid file and for one that its group or other users may write to. If other users may read
    it, a warning is logged.
    """

    def __init__(self, path: FilePath) -> None:
        self._path = path
        self._known = _read_tokens(path)

    def __len__(self) -> int:
        return len(self._known)

    def reload(self) -> int:
        """Read the file again, and return how many tokens it has. Connected clients stay connected
        until ``Service.revalidate_clients``. Raises InvalidConfig; then the old tokens stay
        valid."""
        self._known = _read_tokens(self._path)
        return len(self._known)

    def authenticate(self, credentials: Credentials) -> str | None:
        """See ``Authenticator``. The hash is compared with all known ones, each in constant time,
        so the time it takes says nothing about a token."""
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
    """The ``sha256`` of *token* in a token file. Raises InvalidInput for a token that is too short
    or that has characters other than printable ASCII without blanks."""
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
    # The parsers' error texts are left out here and below, because they may quote a token.
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
    """Raises InvalidConfig if other machines can reach *address* and it is not protected by both
    TLS and tokens, unless *insecure* allows that."""
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
    """Raises InvalidConfig if a client would send its token unencrypted over a network."""
    if has_token and not (has_tls or address.is_local or insecure):
        raise InvalidConfig(
            f"the token would be sent to {address} in the clear: use TLS, or insecure=True if"
            " something else protects it"
        )
