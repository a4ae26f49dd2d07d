"""Every event that a subscriber may get, with its first sentence and where its fields are."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, get_args

from docs.tables.fields import fields
from docs.tables.markdown import table, text
from llmsession import Event, Lagged, Record
from llmsession.turns.records import RecordBase

__all__ = ["durable", "others"]


_SHARED = RecordBase.__struct_fields__
"""Every record has these."""


def durable() -> str:
    """The records: what is in the log, and numbered."""
    return _table(get_args(Record))


def others() -> str:
    """Previews and the rest: not in the log."""
    return _table(kind for kind in get_args(Event) if kind not in get_args(Record))


def _table(kinds: Iterable[Any]) -> str:
    rows = []
    for kind in kinds:
        tag = str(kind.__struct_config__.tag)
        shown = (
            f"[`{tag}`](records.md#{tag.replace('.', '')})" if kind is not Lagged else f"`{tag}`"
        )
        sentence = text((inspect.getdoc(kind) or "").split("\n\n")[0])
        own = [field.name for field in fields(kind) if field.name not in _SHARED]
        names = ", ".join(f"`{name}`" for name in own)
        rows.append((shown, f"`{kind.__name__}`", names, sentence))
    return table(("kind", "class", "fields", "meaning"), rows)
