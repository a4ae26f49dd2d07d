from __future__ import annotations

import sqlite3

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read

from ..shapes import Case, case, check, every
from .sources import at, codebuddy

ABOUT = (
    "INSERT INTO chat_sessions (session_id, agent_id, title) VALUES ('s1', 'agentId', 'T');"
    "INSERT INTO chat_summaries (agent_id, summary, timestamp) VALUES"
    " ('agentId', 'new', '2026-02-01'), ('agentId', 'old', '2026-01-01');"
)
COMPUTED = "ALTER TABLE chat_history ADD COLUMN slow AS (hex(zeroblob(length(agent_id) + 9)));"
NO_TEXT = (
    "INSERT INTO chat_history (agent_id, message_content, message_type, session_id)"
    " VALUES ('a', CAST(x'61ff' AS TEXT), 'user', 's9'), ('a', x'62', 'bot', 's9');"
)
WHOLE = codebuddy()
TEXTS = ["read both", "Both read.", "thanks", "Welcome."]
NUMBERS = [str(n) for n in range(1, 9)]

CASES = {
    "the role is the type and the id the rows": case(
        WHOLE, shape="u1:t a1:t u2:t a2:t", ids=["s1#1", "s1#2", "s1#3", "s1#4"], said=TEXTS,
        times=[1767225600.5 + second for second in (1, 2, 3, 4)],
    ),
    "rows of one time are in the order of their ids": case(
        codebuddy(*[(n, "user" if int(n) % 2 else "bot", at(1), "s1") for n in NUMBERS]),
        said=NUMBERS,
    ),
    "times in iso and in milliseconds are one order": case(
        codebuddy(
            ("third", "user", "2026-01-01T00:00:03.000Z", "s1"),
            ("first", "user", 1767225601000, "s1"),
            ("second", "bot", "2026-01-01 00:00:02", "s1"),
        ),
        said=["first", "second", "third"],
    ),
    "each agent and session is a conversation with its title and summary": case(
        codebuddy(("a", "user", 1, "s1"), ("b", "user", 2, "s2"), script=ABOUT),
        id="s1", title="T", summary="new", labels={"agent": "agentId"},
        branches=[{"id": "s2", "title": ""}],
    ),
    "system rows are the system prompt wherever they stand": case(
        codebuddy(("be short", "system", 1, "s1"), ("a", "user", 2, "s1"), ("b", "bot", 3, "s1")),
        system="be short",
    ),
    "times that are none lose no message": case(
        codebuddy(("a", "user", None, "s1"), ("b", "bot", "yesterday", "s1")), said=["a", "b"]
    ),
    "a row of an unknown type is noted or refused by its number": case(
        codebuddy(("a", "user", 1, "s1"), ("b", "ghost", 2, "s1")), notes=["2 bad_message!"],
        refused=r"^row 2: .*'ghost'",
    ),
    "a database in wal mode is read": case(
        WHOLE[:18] + b"\x02\x02" + WHOLE[20:], said=TEXTS
    ),
    "bytes that are no text are replaced": case(
        codebuddy(script=NO_TEXT), said=TEXTS, branches=[{"id": "s9", "said": ["a\ufffd", "b"]}]
    ),
}  # fmt: skip


@every(CASES)
def test_a_database_is_detected_and_read(case: Case) -> None:
    assert detect(case.raw) == "codebuddy"
    check(case, "codebuddy")


def test_a_column_that_is_computed_is_not_read() -> None:
    (found,) = read(codebuddy(script=COMPUTED), strict=True)
    assert not any(message.extra for message in found.messages)


def database(schema: str) -> bytes:
    database = sqlite3.connect(":memory:")
    database.execute(schema)
    database.commit()
    raw = database.serialize()
    database.close()
    return raw


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (database("CREATE TABLE other (a)"), "no table chat_history"),
        (database("CREATE TABLE chat_history (a)"), "no column message_content"),
        (database("CREATE TABLE chat_history (message_content, message_type)"), "is empty"),
        (database("CREATE VIEW chat_history AS SELECT 1 AS message_content"),
         "no table chat_history"),
        (b"no database", None),
        (WHOLE[:50], None),
        (WHOLE[:2000], None),
        (WHOLE[:100] + b"\xff" * (len(WHOLE) - 100), None),
    ],
    ids=["another table", "other columns", "empty", "a view", "text", "cut", "cut later", "broken"],
)  # fmt: skip
def test_a_database_of_something_else_or_not_whole_is_one_error(
    raw: bytes, says: str | None
) -> None:
    with pytest.raises(TranscriptError, match=says) as caught:
        read(raw, "codebuddy")
    assert "\n" not in str(caught.value)
