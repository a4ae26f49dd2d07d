"""Reads a file that is one JSON document, or as much of it as there is."""

from __future__ import annotations

import json
import re
from typing import NoReturn

import msgspec

from llmsession.errors import InvalidMessage, TranscriptError
from llmsession.turns.blocks import encode_json, too_deep

from .conversation import Note
from .record import compact

__all__ = ["read_document"]

_BYTE = re.compile(r"\(byte (\d+)\)")
_all_floats = msgspec.json.Decoder(float_hook=str)


def read_document(raw: bytes, notes: list[Note], *, strict: bool = False) -> bytes:
    """The JSON document in *raw*, valid and without white space between its parts.

    Bytes that are not UTF-8, and lone surrogates, become U+FFFD, with a note. If the document was
    cut off, all complete items of its outermost open array are read, with a ``torn_file`` note.

    Raises TranscriptError, with the line, if *raw* is not JSON. With *strict*, also if it was cut
    off or is not UTF-8.
    """
    text = _as_utf8(raw.removeprefix(b"\xef\xbb\xbf"), notes, strict)
    if not text.strip():
        raise TranscriptError("the file is empty")
    error = _wrong_with(text)
    if error is None:
        return compact(text)
    whole = _without_surrogates(text)
    if whole is not None:
        notes.append(Note(1, "surrogates", "replaced by U+FFFD"))
        return compact(whole)
    line = _line_of(error, text)
    torn = None if strict else _whole_part(text)
    if torn is None or _wrong_with(torn) is not None:
        raise TranscriptError(f"not a JSON document: {_reason(error)}", line) from error
    detail = "the file was cut off; what stands before the cut is read"
    notes.append(Note(line, "torn_file", detail, visible=True))
    return compact(torn)


def _as_utf8(raw: bytes, notes: list[Note], strict: bool) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        if strict:
            raise TranscriptError("not valid UTF-8", line) from error
        notes.append(Note(line, "bad_utf8", "replaced by U+FFFD"))
        return raw.decode("utf-8", "replace").encode()
    return raw


def _wrong_with(text: bytes) -> Exception | None:
    try:
        _all_floats.decode(text)
        if too_deep(text):
            return TranscriptError("nested too deep")
    except (msgspec.DecodeError, RecursionError) as error:
        return error
    return None


def _reason(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def _line_of(error: Exception, text: bytes) -> int:
    match = _BYTE.search(str(error))
    end = int(match[1]) if match else len(text.rstrip())
    return text.count(b"\n", 0, end) + 1


def _without_surrogates(text: bytes) -> bytes | None:
    # The standard library's reader accepts lone surrogates.
    if b"\\u" not in text:
        return None
    try:
        return encode_json(json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError, InvalidMessage):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class _Open:
    """An open array or object: its closing bracket, and where its last complete item ends."""

    def __init__(self, closer: str, index: int) -> None:
        self.closer = closer
        self.end = index


def _whole_part(text: bytes) -> bytes | None:
    """A document that was cut off, closed behind the last complete item of its outermost open
    array; None if there is no such array.
    """
    source = text.decode()
    stack: list[_Open] = []
    for match in _SIGNS.finditer(source):
        sign = match[0]
        if sign[0] == '"':
            continue
        if sign in "[{":
            stack.append(_Open("]" if sign == "[" else "}", match.end()))
        elif not stack:
            return None
        elif sign == ",":
            stack[-1].end = match.start()
        else:
            if stack.pop().closer != sign:
                return None
            if stack:
                stack[-1].end = match.end()
    for depth, bracket in enumerate(stack):
        if bracket.closer == "]":
            closers = "".join(outer.closer for outer in reversed(stack[: depth + 1]))
            return (source[: bracket.end] + closers).encode()
    return None


# The file may also have been cut off within an escape.
_SIGNS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
