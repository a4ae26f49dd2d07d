"""Reads JSON Lines as they are found on disks: torn, glued, with a BOM, with CRLF, with invalid
UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from llmsession.errors import InvalidMessage, TranscriptError
from llmsession.turns.blocks import encode_json

from .conversation import Note

__all__ = ["JsonLine", "clip", "read_lines"]

_space = re.compile(r"\s*")
_BOM = b"\xef\xbb\xbf"


class JsonLine(msgspec.Struct, frozen=True, gc=False):
    """One JSON object. ``raw`` is what the file contains, byte for byte, unless a note says
    otherwise.
    """

    line: int
    raw: bytes


def clip(text: str, length: int = 80) -> str:
    """*text* on one line, in at most *length* characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 3] + "..."


def read_lines(raw: bytes, *, strict: bool = False) -> tuple[list[JsonLine], list[Note]]:
    """The objects of *raw*, a file's bytes, in order, and notes on everything that is not an
    object.

    Two objects that are glued together on one line are two objects. Bytes that are not UTF-8, and
    lone surrogates, become U+FFFD. A broken last line is noted as ``torn_line``, because its writer
    was cut off. A broken line before it is noted as ``bad_line``.

    Raises TranscriptError, with the line, for a ``bad_line`` or bad UTF-8 if *strict*.
    """
    objects: list[JsonLine] = []
    notes: list[Note] = []
    rows = list(_rows(raw))
    for index, (number, row) in enumerate(rows):
        if not _is_utf8(row):
            if strict:
                raise TranscriptError("not valid UTF-8", number)
            notes.append(Note(number, "bad_utf8", "replaced by U+FFFD"))
            row = row.decode("utf-8", "replace").encode()
        if _is_object(row):
            objects.append(JsonLine(number, row))
            continue
        pieces, rest = _split_glued(row.decode())
        objects.extend(JsonLine(number, piece) for piece in pieces)
        if pieces:
            what = "glued" if len(pieces) > 1 or rest else "surrogates"
            notes.append(Note(number, what, f"{len(pieces)} objects"))
        if rest and index < len(rows) - 1 and strict:
            raise TranscriptError("not a JSON object", number)
        if rest:
            what = "bad_line" if index < len(rows) - 1 else "torn_line"
            notes.append(Note(number, what, clip(rest), visible=True))
    return objects, notes


def _rows(raw: bytes) -> Iterator[tuple[int, bytes]]:
    # Not splitlines(): it also splits at a lone CR, which JSON allows as white space.
    for number, row in enumerate(raw.removeprefix(_BOM).split(b"\n"), 1):
        row = row.strip(b" \t\r")
        if row:
            yield number, row


def _is_utf8(row: bytes) -> bool:
    try:
        row.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_object(row: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(row), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def _split_glued(text: str) -> tuple[list[bytes], str]:
    # The standard library's reader can stop after a value, and it accepts lone surrogates.
    pieces: list[bytes] = []
    index = 0
    while index < len(text):
        try:
            value, end = _reader.raw_decode(text, index)
            piece = encode_json(value) if _has_surrogate(value) else text[index:end].encode()
        except (ValueError, RecursionError, InvalidMessage):
            break
        if not isinstance(value, dict):
            break
        pieces.append(piece)
        space = _space.match(text, end)
        index = space.end() if space else end
    return pieces, text[index:]


def _has_surrogate(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_reader = json.JSONDecoder(parse_constant=_refuse)
