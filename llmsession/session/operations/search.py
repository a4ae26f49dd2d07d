"""Full-text search over the sessions of a store. Acquires no lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import anyio
import msgspec

from llmsession.errors import RecordDamaged, SessionError, SessionNotFound
from llmsession.store.protocol import SessionFilter, SessionRow, Store, WordIndex

from ..log.read_state import read_state
from ..log.titles import given_title
from ..log.words import Query, find_in, find_in_text, parse_query, words_of_record
from ..tasks.worker_thread import off_loop

__all__ = ["SearchHit", "SearchPage", "search_sessions"]

PAGE = 100
"""Sessions that are read from the store at a time."""
AT_ONCE = 4
"""Sessions whose logs are read at a time: beside busy sessions each read waits for its turn of the
event loop. More would hold up the others, because each folds some milliseconds at a time."""
MAX_RECORDS = 20_000
"""Records that are read for one page of a search. The page ends then, so that nobody waits long."""


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A session with a match."""

    session: str
    messages: int
    """How many of its messages match; 0 if only the title does."""
    turn: int
    """The turn of the last matching message; 0 if only the title matches."""
    role: Literal["user", "assistant"]
    """Whose message that is."""
    at: float
    """When that message was complete, in seconds since the epoch. If only the title matches, the
    time of the session's last record.
    """
    excerpt: str
    """The text around the match, or the title."""
    in_title: bool = False
    """Does the title match, the one that was set or that of the import?"""


class SearchPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One page of search results."""

    hits: tuple[SearchHit, ...] = ()
    """The matching sessions, by id."""
    next: str | None = None
    """Search again with ``after`` set to this id. None if everything was searched."""
    skipped: dict[str, str] = {}
    """Why a session could not be read, by session id."""


async def search_sessions(
    store: Store, query: str, *, after: str, limit: int, filter: SessionFilter
) -> SearchPage:
    """At most *limit* sessions after the id *after* that match *filter* and *query*.

    A store with a word index says which sessions may match. Without an index every session is read.
    Either way a session is found by reading its conversation, so messages that were forgotten,
    cleared or rewound are not found. Raises InvalidInput and StoreError.
    """
    parsed = parse_query(query)
    hits: list[SearchHit] = []
    skipped: dict[str, str] = {}
    records = 0
    while rows := await _rows(store, parsed, after, filter):
        while rows:
            at_once = min(AT_ONCE, limit - len(hits))
            together, rows = rows[:at_once], rows[at_once:]
            for row, found in zip(together, await _all_found(store, parsed, together), strict=True):
                after = row.session
                records += row.head
                match found:
                    case SearchHit():
                        hits.append(found)
                    case RecordDamaged():
                        skipped[row.session] = str(found)
                    case SessionError():
                        raise found
                if len(hits) >= limit or records >= MAX_RECORDS:
                    return SearchPage(hits=tuple(hits), next=after, skipped=skipped)
    return SearchPage(hits=tuple(hits), skipped=skipped)


async def _all_found(
    store: Store, query: Query, rows: Sequence[SessionRow]
) -> Sequence[SearchHit | SessionError | None]:
    """For each of *rows* its hit, None if it has none, or why it could not be read."""
    found: list[SearchHit | SessionError | None] = [None] * len(rows)

    async def look(at: int, row: SessionRow) -> None:
        try:
            found[at] = await _hit(store, query, row)
        except SessionNotFound:
            pass  # deleted after the row was read
        except SessionError as error:
            found[at] = error

    async with anyio.create_task_group() as group:
        for at, row in enumerate(rows):
            if row.head:
                group.start_soon(look, at, row)
    return found


async def _rows(
    store: Store, query: Query, after: str, filter: SessionFilter
) -> Sequence[SessionRow]:
    if isinstance(store, WordIndex):
        return await store.rows_with(
            query.words, words_of_record, after=after, limit=PAGE, filter=filter
        )
    return await store.rows(after=after, limit=PAGE, filter=filter)


async def _hit(store: Store, query: Query, row: SessionRow) -> SearchHit | None:
    state = await read_state(store, row.session, head=row.head)
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
