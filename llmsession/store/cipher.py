"""How a store keeps a body: the bytes themselves, or encrypted with the user's key.

AES-256-GCM with a random nonce for each body, by the library ``cryptography``. A sealed body is
bound to its place, so that nobody can put one in another's place unnoticed. A key is 32 bytes that
the user made, or a passphrase from which scrypt derives them. The key itself is stored nowhere. A
store keeps a *note* that tells a right key from a wrong one.

One key is good for 2**32 bodies: after that many, two random nonces of 96 bits are equal with a
probability of 2**-32 (NIST SP 800-38D, 8.3).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from llmsession.errors import InvalidConfig, StoreError, need_package

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = [
    "PLAIN",
    "Cipher",
    "Key",
    "Unreadable",
    "check_installed",
    "check_key",
    "lock",
    "note_of_sealed_rows",
    "unlock",
    "unseal_block",
]

Key = bytes | str
"""32 bytes, or a passphrase."""

KEY_BYTES = 32
_NONCE_BYTES = 12
_SALT_BYTES = 16
# Parameters from OWASP's Password Storage Cheat Sheet for scrypt: 128 MiB and about 0.4 s, once
# each time a store is opened.
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 2**17, 8, 1
_MAX_BYTES = 2**31 - 1  # of one body, by AESGCM
_CHECK, _CHECK_PLACE = b"llmsession", b"key check"
# This text in the note says that every row of the store has seals, so a row without them was
# changed. A store from before there were seals gets them, and this note, when it is first opened.
_CHECK_WITH_SEALS = b"llmsession with sealed rows"


class Unreadable(Exception):
    """The bytes were not sealed with this key for this place, or they were changed."""


class Cipher(Protocol):
    """Seals what a store keeps. May be used by several threads at once."""

    def seal(self, body: bytes, place: bytes) -> bytes:
        """*body* in the form in which it is kept at *place*."""

    def unseal(self, sealed: bytes, place: bytes) -> bytes:
        """The body that was sealed for *place*. Raises Unreadable."""

    def name(self, content: bytes) -> bytes:
        """32 bytes that name *content*. They are equal only for equal contents."""

    def matches(self, content: bytes, name: bytes) -> bool:
        """Is *content*, which was unsealed for the place *name*, the content with that name?"""

    def sign(self, facts: bytes) -> bytes | None:
        """A signature of *facts* that only a holder of the key can compute; None without a key."""


class _Plain:
    """Seals nothing. A content is named by its SHA-256."""

    def seal(self, body: bytes, place: bytes) -> bytes:
        return body

    def unseal(self, sealed: bytes, place: bytes) -> bytes:
        return sealed

    def name(self, content: bytes) -> bytes:
        return hashlib.sha256(content).digest()

    def matches(self, content: bytes, name: bytes) -> bool:
        return self.name(content) == name

    def sign(self, facts: bytes) -> bytes | None:
        return None


PLAIN: Cipher = _Plain()
"""The cipher of a store without a key."""


class _Sealing:
    """Seals with keys that are derived from one *key* of 32 bytes.

    A content is named by an HMAC, so that nobody without the key can find out whether a store has a
    content that they know.
    """

    def __init__(self, key: bytes) -> None:
        self._aead = _aesgcm()(_subkey(key, b"seal"))
        self._naming = _subkey(key, b"name")
        self._signing = _subkey(key, b"sign")

    def __repr__(self) -> str:
        return "<a cipher>"

    def seal(self, body: bytes, place: bytes) -> bytes:
        if len(body) > _MAX_BYTES:
            raise Unreadable(f"{len(body)} bytes are too many to be encrypted at once")
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, body, place)

    def unseal(self, sealed: bytes, place: bytes) -> bytes:
        try:
            return self._aead.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
        except Exception as error:  # InvalidTag, or ValueError for a nonce that is cut short
            raise Unreadable("it cannot be decrypted") from error

    def name(self, content: bytes) -> bytes:
        return hmac.digest(self._naming, content, "sha256")

    def matches(self, content: bytes, name: bytes) -> bool:
        return True  # the seal is bound to its name

    def sign(self, facts: bytes) -> bytes | None:
        return hmac.digest(self._signing, facts, "sha256")


def unseal_block(cipher: Cipher, sealed: bytes | None, name: bytes) -> bytes:
    """The large block with the name *name*. *sealed* is None if the store no longer has it.

    Raises Unreadable.
    """
    if sealed is None:
        raise Unreadable("a large block of it is missing")
    content = cipher.unseal(sealed, name)
    if not cipher.matches(content, name):
        raise Unreadable("a large block of it was changed")
    return content


class _Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store keeps in plain text about its key. ``salt`` and scrypt's costs are set for a
    passphrase.
    """

    check: str
    salt: str = ""
    n: int = 0
    r: int = 0
    p: int = 0


def check_key(key: Key | None) -> None:
    """Raises InvalidConfig for an invalid key. The message contains nothing of the key."""
    if key is None:
        return
    if isinstance(key, bytes):
        if len(key) != KEY_BYTES:
            raise InvalidConfig(f"a key of bytes must have {KEY_BYTES} bytes, not {len(key)}")
    elif not isinstance(key, str):
        raise InvalidConfig(f"a key must be bytes or a text, not {type(key).__name__}")
    elif not key:
        raise InvalidConfig("a key that is a passphrase cannot be empty")


def check_installed(key: Key | None) -> None:
    """Raises InvalidConfig if there is a key but ``cryptography`` is not installed.

    It may read files, so do not call it in an event loop.
    """
    if key is not None:
        _aesgcm()


def lock(key: Key) -> tuple[Cipher, str]:
    """A cipher for a new store, and the note that the store must keep.

    Takes about 0.4 s for a passphrase. Raises InvalidConfig if ``cryptography`` is not installed.
    """
    draft = _Note("")
    if isinstance(key, str):
        salt = base64.b64encode(os.urandom(_SALT_BYTES)).decode()
        draft = _Note("", salt, _SCRYPT_N, _SCRYPT_R, _SCRYPT_P)
    cipher = _Sealing(_key_bytes(key, draft))
    return cipher, _note_text(cipher, draft)


def _note_text(cipher: Cipher, draft: _Note) -> str:
    check = base64.b64encode(cipher.seal(_CHECK_WITH_SEALS, _CHECK_PLACE)).decode()
    return msgspec.json.encode(msgspec.structs.replace(draft, check=check)).decode()


def note_of_sealed_rows(cipher: Cipher, note: str | None) -> str | None:
    """The note that replaces *note* once all rows of the store are sealed.

    None if they are sealed already, or if the store has no key.
    """
    if note is None:
        return None
    kept = msgspec.json.decode(note, type=_Note)
    if cipher.unseal(base64.b64decode(kept.check), _CHECK_PLACE) == _CHECK_WITH_SEALS:
        return None
    return _note_text(cipher, kept)


def unlock(key: Key | None, note: str | None, where: str) -> Cipher:
    """The cipher of the store *where* (its name in messages), which kept *note*.

    Raises StoreError if a key is missing, wrong, or given for a store that is not encrypted, and
    InvalidConfig if ``cryptography`` is not installed. Takes about 0.4 s for a passphrase.
    """
    if note is None:
        if key is not None:
            raise StoreError(f"{where} is not encrypted, but a key was given", committed=False)
        return PLAIN
    if key is None:
        raise StoreError(f"{where} is encrypted, but no key was given", committed=False)
    try:
        sealed = msgspec.json.decode(note, type=_Note)
        check = base64.b64decode(sealed.check)
        key_type = str if sealed.salt else bytes
        if isinstance(key, key_type):
            cipher = _Sealing(_key_bytes(key, sealed))
            if cipher.unseal(check, _CHECK_PLACE) in (_CHECK, _CHECK_WITH_SEALS):
                return cipher
    except Unreadable:
        pass
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"{where} has a damaged note of its key", committed=False) from error
    raise StoreError(f"the key is not that of {where}", committed=False)


def _key_bytes(key: Key, note: _Note) -> bytes:
    if isinstance(key, bytes):
        return key
    salt = base64.b64decode(note.salt)
    return hashlib.scrypt(
        key.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=note.n,
        r=note.r,
        p=note.p,
        maxmem=256 * note.n * note.r,  # twice what it needs
        dklen=KEY_BYTES,
    )


def _subkey(key: bytes, use: bytes) -> bytes:
    """A key for one use only: HMAC as a key derivation function (NIST SP 800-108)."""
    return hmac.digest(key, b"llmsession " + use, "sha256")


def _aesgcm() -> type[AESGCM]:
    need_package("cryptography", "a store with a key", "llmsession[encryption]")
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM
