"""Full-text search over the sessions of a store. Acquires no session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from llmsession.errors import RecordDamaged, SessionNotFound
from llmsession.store.protocol import SessionFilter, SessionRow, Store, WordIndex

from ..log.read_state import read_state
from ..log.titles import given_title
from ..log.words import Query, find_in, find_in_text, parse_query, words_of_record
from ..tasks.worker_thread import off_loop

__all__ = ["SearchHit", "SearchPage", "search_sessions"]

PAGE = 100
"""Sessions asked of the store at a time."""
MAX_RECORDS = 20_000
"""Records read for one page of a search: then it ends, so that nobody waits for long."""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A session in which something was found: in ``messages`` of its messages. The last of them is
    of ``turn`` and ``role``, was complete at ``at`` (seconds since the epoch), and has ``excerpt``
    around what was found. With ``in_title`` its title has all words, the one that it was given or
    that of its import. If no message has them, ``messages`` and ``turn`` are 0, ``at`` is the time
    of the last record, and ``excerpt`` is of the title."""

    session: str
    messages: int
    turn: int
    role: Literal["user", "assistant"]
    at: float
    excerpt: str
    in_title: bool = False


class SearchPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found in the sessions up to ``next``, by id: search on ``after`` that one. None:
    everything was searched. ``skipped`` are sessions that could not be read, and why."""

    hits: tuple[SearchHit, ...] = ()
    next: str | None = None
    skipped: dict[str, str] = {}


async def search_sessions(
    store: Store, query: str, *, after: str, limit: int, filter: SessionFilter
) -> SearchPage:
    """At most *limit* sessions with ids greater than *after* whose conversation has a message with
    all words of *query*, of those that *filter* finds.

    A store with an index of words says which sessions may have them; of another store every
    session is read. Either way a session is found by reading its conversation: what was forgotten,
    cleared or rewound is not found. Raises InvalidInput and StoreError.
    """
    parsed = parse_query(query)
    hits: list[SearchHit] = []
    skipped: dict[str, str] = {}
    records = 0
    while rows := await _rows(store, parsed, after, filter):
        for row in rows:
            after = row.session
            records += row.head
            try:
                hit = await _hit(store, parsed, row) if row.head else None
            except SessionNotFound:
                continue  # it was deleted meanwhile
            except RecordDamaged as error:
                skipped[row.session] = str(error)
                continue
            if hit is not None:
                hits.append(hit)
            if len(hits) >= limit or records >= MAX_RECORDS:
                return SearchPage(hits=tuple(hits), next=after, skipped=skipped)
    return SearchPage(hits=tuple(hits), skipped=skipped)


async def _rows(
    store: Store, query: Query, after: str, filter: SessionFilter
) -> Sequence[SessionRow]:
    if isinstance(store, WordIndex):
        return await store.rows_with(
            query.words, words_of_record, after=after, limit=PAGE, filter=filter
        )
    return await store.rows(after=after, limit=PAGE, filter=filter)


async def _hit(store: Store, query: Query, row: SessionRow) -> SearchHit | None:
    state = await read_state(store, row.session)
    title = find_in_text(query, given_title(state.labels, state.source))
    found = await off_loop(find_in, query, state.history)
    if found is None and title is None:
        return None
    if found is None:
        return SearchHit(
            session=row.session,
            messages=0,
            turn=0,
            role="user",
            at=row.touched_at,
            excerpt=title or "",
            in_title=True,
        )
    message = found.message
    return SearchHit(
        session=row.session,
        messages=found.messages,
        turn=message.turn,
        role=message.role,
        at=message.completed_at or message.created_at,
        excerpt=found.excerpt,
        in_title=title is not None,
    )
