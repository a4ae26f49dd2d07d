"""The titles of sessions, as a list shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmsession.store.protocol import SessionRow, Store
from llmsession.turns import records as r
from llmsession.turns.blocks import TextBlock, joined_text, parse_blocks
from llmsession.turns.messages import Message

from ..values.labels import TITLE_LABEL, title_from
from .reader import read_page
from .redaction import NOTHING_SAID
from .state import SessionState

__all__ = ["given_title", "read_title", "title_of"]

MAX_RECORDS = 64
"""How many records of a log are read to find its first request."""


def given_title(labels: Mapping[str, str], source: r.Source | None) -> str:
    """The title that was set for a session with *labels*, or else the title of its import."""
    return labels.get(TITLE_LABEL, "") or (title_from(source.title) if source is not None else "")


def title_of(state: SessionState) -> str:
    """The title of the session with *state*.

    It is the title that was set, or that of its import, or the beginning of the first request.
    """
    messages = state.messages or tuple(m for turn in state.open.values() for m in turn.staged)
    return given_title(state.labels, state.source) or _first_request(messages)


async def read_title(store: Store, row: SessionRow) -> str:
    """The title of the session *row*, read from the beginning of its log.

    It uses the first request there that was not forgotten; "" if it is not among the first records.
    Acquires no lease. Raises StoreError, SessionNotFound and RecordDamaged.
    """
    if TITLE_LABEL in row.labels:
        return row.labels[TITLE_LABEL]
    title = ""
    for record in await read_page(store, row.session, 0, min(row.head, MAX_RECORDS)):
        match record:
            case r.SessionCreated() | r.SessionForked() if record.source is not None:
                title = title_from(record.source.title) or title
            case r.TurnAccepted() if not title and record.body != NOTHING_SAID:
                title = title_from(joined_text(parse_blocks(record.body), " "))
            case r.TurnImported() if not title:
                title = _first_request(record.messages)
    return title


def _first_request(messages: Iterable[Message]) -> str:
    for message in messages:
        if message.is_user:
            texts = [
                block.text
                for index, block in enumerate(message.content)
                if isinstance(block, TextBlock) and index not in message.synthetic
            ]
            if title := title_from(" ".join(texts)):
                return title
    return ""
