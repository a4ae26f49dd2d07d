"""Cuts large blocks out of a record's body, so that a store keeps each content once.

A base64 image is a long string literal in the JSON of its record, and it comes again in every
session that it is sent to. Pure, and lossless for any bytes: what is cut out is put back at the
same places, whether the body is JSON or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

__all__ = [
    "LARGE_BYTES",
    "NAME_BYTES",
    "Split",
    "join_large",
    "pack_places",
    "split_large",
    "unpack_places",
]

LARGE_BYTES = 16 * 1024
"""A literal of at least this length is cut out. It is four pages of SQLite: below that, a row of
its own costs more than a repeated block.
"""
NAME_BYTES = 32
"""The length of a content's name: SHA-256."""

_PLACE_BYTES = 8
# A literal, or the rest of one at the end. The pattern is possessive, and the end of the bytes
# counts as a closing quote. So it never fails once it has begun, and the search is linear for any
# bytes.
_LITERAL = re.compile(rb'"((?:[^"\\]++|\\.)*+)(?:"|\\?\Z)', re.DOTALL)


class Split(msgspec.Struct, frozen=True):
    """A body without its large *parts*. Each part belongs at its place in *rest*; places ascend."""

    rest: bytes
    places: tuple[int, ...]
    parts: tuple[bytes, ...]


def split_large(body: bytes, *, large_bytes: int = LARGE_BYTES) -> Split | None:
    """*body* and its string literals of at least *large_bytes*, without quotes and with their
    escapes.

    None if there are none.
    """
    if len(body) < large_bytes:
        return None
    pieces: list[bytes] = []
    places: list[int] = []
    parts: list[bytes] = []
    end = length = 0
    for literal in _LITERAL.finditer(body):
        start, stop = literal.span(1)
        if stop - start < large_bytes:
            continue
        pieces.append(body[end:start])
        length += start - end
        places.append(length)
        parts.append(literal[1])
        end = stop
    if not parts:
        return None
    pieces.append(body[end:])
    return Split(b"".join(pieces), tuple(places), tuple(parts))


def join_large(rest: bytes, places: Sequence[int], parts: Sequence[bytes]) -> bytes:
    """The original body, byte for byte.

    Raises ValueError if places are outside of *rest*, or if their number differs from that of the
    parts.
    """
    pieces: list[bytes] = []
    end = 0
    for place, part in zip(places, parts, strict=True):
        if not end <= place <= len(rest):
            raise ValueError(f"no place {place} in {len(rest)} bytes")
        pieces += (rest[end:place], part)
        end = place
    pieces.append(rest[end:])
    return b"".join(pieces)


def pack_places(places: Sequence[int], names: Sequence[bytes]) -> bytes:
    """Places, each with the name of its part, as a store keeps them beside the rest."""
    return b"".join(
        place.to_bytes(_PLACE_BYTES, "big") + name
        for place, name in zip(places, names, strict=True)
    )


def unpack_places(packed: bytes) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """The places and names that ``pack_places`` packed. Raises ValueError for other bytes."""
    step = _PLACE_BYTES + NAME_BYTES
    if len(packed) % step:
        raise ValueError(f"{len(packed)} bytes are no places of large blocks")
    starts = range(0, len(packed), step)
    places = tuple(int.from_bytes(packed[start : start + _PLACE_BYTES], "big") for start in starts)
    return places, tuple(packed[start + _PLACE_BYTES : start + step] for start in starts)
