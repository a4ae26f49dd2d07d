"""Seals that bind the row of an encrypted session to its records. They need the key.

A record's own seal says where the record lies. Which session may read that place is in the row,
which is plain text. So the row has an *origin seal* (its id, its parent, and where its records
lie), which changes with forks and rewriting, and a *head seal* (the number of records), which
changes with every append. A row that was swapped, renamed, cut, or pointed at another session's
records has no matching seal. A store without a key has neither seal. Pure.

Not covered: somebody with an earlier copy of a store can put back a session's row together with the
records of that time. And nobody without the key can be kept from deleting.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import msgspec

from llmsession.errors import RecordDamaged

from .cipher import PLAIN, Cipher

__all__ = ["Part", "check_row", "seal_head", "seal_origin"]

Part = tuple[int, int, int | str]
"""Records from the first to the second seq, and the place where they lie, as the store names it."""


def seal_origin(
    cipher: Cipher, session: str, place: int | str, parent: str | None, parts: Sequence[Part]
) -> bytes | None:
    """The origin seal of a row. *session* appends at *place*; *parts* are its records elsewhere."""
    if cipher is PLAIN:
        return None
    return cipher.sign(msgspec.json.encode(["origin", session, place, parent, parts]))


def seal_head(cipher: Cipher, place: int | str, head: int) -> bytes | None:
    """The head seal: *head* is the number of records of the session that appends at *place*."""
    if cipher is PLAIN:
        return None
    return cipher.sign(b"head" + msgspec.json.encode([place, head]))


def check_row(
    cipher: Cipher,
    session: str,
    place: int | str,
    *,
    parent: str | None,
    parts: Sequence[Part],
    head: int,
    seals: tuple[bytes | None, bytes | None],
) -> None:
    """Raises RecordDamaged if *seals*, of the origin and of the head, do not match the row."""
    origin, end = seals
    if not _fits(seal_origin(cipher, session, place, parent, parts), origin):
        why = "the session's row was changed without the store's key: these are not its records"
        raise RecordDamaged(session, 1, why)
    if not _fits(seal_head(cipher, place, head), end):
        why = "the number of records was changed without the store's key: some were cut off"
        raise RecordDamaged(session, head + 1, why)


def _fits(seal: bytes | None, kept: bytes | None) -> bool:
    return seal is None or hmac.compare_digest(seal, kept or b"")
