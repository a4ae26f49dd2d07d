"""The fields of one JSON object in a file, decoded one by one, and kept byte for byte."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from llmsession.turns.blocks import is_number

from .times import seconds_of

__all__ = ["Record", "compact"]

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


class Record:
    """A JSON object. ``number`` is its line, or its place among the file's records, from 1.

    A field of another type counts as absent: a number is never returned as a text.
    """

    def __init__(self, number: int, fields: dict[str, msgspec.Raw]) -> None:
        self.number = number
        self.fields = fields

    @classmethod
    def of(cls, raw: bytes | msgspec.Raw | msgspec.UnsetType | None, number: int = 0) -> Record:
        """The object *raw*; an object without fields for anything else."""
        if raw is None or raw is msgspec.UNSET:
            return cls(number, {})
        try:
            return cls(number, _fields.decode(raw))
        except msgspec.DecodeError:
            return cls(number, {})

    def raw(self, name: str) -> bytes | None:
        """The field's bytes; None if it is absent or null."""
        raw = self.fields.get(name)
        return None if raw is None or bytes(raw) == b"null" else bytes(raw)

    def value(self, name: str) -> Any:
        """The field, decoded; None if it is absent."""
        raw = self.raw(name)
        try:
            return None if raw is None else msgspec.json.decode(raw)
        except msgspec.DecodeError:  # a number out of range
            return None

    def text(self, name: str) -> str | None:
        """The field, if it is a text; else None."""
        raw = self.raw(name)
        return msgspec.json.decode(raw, type=str) if raw and raw.startswith(b'"') else None

    def number_of(self, name: str) -> float | None:
        """The field, if it is a number; else None."""
        value = self.value(name)
        return value if is_number(value) else None

    def count(self, name: str) -> int:
        """The field, if it is a number of 0 or more; else 0."""
        return max(0, int(self.number_of(name) or 0))

    def flag(self, name: str) -> bool:
        """Is the field true?"""
        return self.raw(name) == b"true"

    def record(self, name: str) -> Record:
        """The field as an object; an object without fields for anything else."""
        return Record.of(self.raw(name), self.number)

    def items(self, name: str) -> list[msgspec.Raw]:
        """The field's items, if it is an array; else none."""
        raw = self.raw(name)
        return _items.decode(raw) if raw and raw.startswith(b"[") else []

    def records(self, name: str) -> list[Record]:
        """The field's items as objects, numbered from 1, if it is an array; else none."""
        return [Record.of(raw, index) for index, raw in enumerate(self.items(name), 1)]

    def rest(self, known: Collection[str]) -> dict[str, Any]:
        """The fields that are not in *known*, each with a copy of its bytes."""
        return {
            name: msgspec.Raw(bytes(raw)) for name, raw in self.fields.items() if name not in known
        }

    def at(self, *names: str) -> float:
        """The first of these fields that is a time, in seconds since the epoch; 0 if none is."""
        return next(filter(None, (seconds_of(self.value(name)) for name in names)), 0.0)


def compact(raw: bytes | msgspec.Raw) -> bytes:
    """JSON without white space between its parts. Strings and numbers stay unchanged."""
    return msgspec.json.format(bytes(raw), indent=-1)
