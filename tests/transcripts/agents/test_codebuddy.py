from __future__ import annotations

import sqlite3

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import detect, read

from .sources import at, codebuddy


def texts(raw: bytes) -> list[str]:
    return [message.text for message in read(raw, strict=True)[0].messages]


def test_the_role_is_the_type_and_the_id_the_rows() -> None:
    (found,) = read(codebuddy(), strict=True)
    assert [(message.id, message.role) for message in found.messages] == [
        ("s1#1", "user"), ("s1#2", "assistant"), ("s1#3", "user"), ("s1#4", "assistant"),
    ]  # fmt: skip
    assert found.messages[0].created_at == 1767225601.5
    assert detect(codebuddy()) == "codebuddy"


def test_rows_of_one_time_are_in_the_order_of_their_ids() -> None:
    raw = codebuddy(*[(str(n), "user" if n % 2 else "bot", at(1), "s1") for n in range(1, 9)])
    assert texts(raw) == [str(n) for n in range(1, 9)]


def test_times_in_iso_and_in_milliseconds_are_one_order() -> None:
    raw = codebuddy(
        ("third", "user", "2026-01-01T00:00:03.000Z", "s1"),
        ("first", "user", 1767225601000, "s1"),
        ("second", "bot", "2026-01-01 00:00:02", "s1"),
    )
    assert texts(raw) == ["first", "second", "third"]


def test_each_agent_and_session_is_a_conversation_with_its_title_and_summary() -> None:
    script = (
        "INSERT INTO chat_sessions (session_id, agent_id, title) VALUES ('s1', 'agentId', 'T');"
        "INSERT INTO chat_summaries (agent_id, summary, timestamp) VALUES"
        " ('agentId', 'new', '2026-02-01'), ('agentId', 'old', '2026-01-01');"
    )
    raw = codebuddy(("a", "user", 1, "s1"), ("b", "user", 2, "s2"), script=script)
    first, second = read(raw, strict=True)
    assert [(first.id, first.title), (second.id, second.title)] == [("s1", "T"), ("s2", "")]
    assert (first.summary, first.labels) == ("new", {"agent": "agentId"})


def test_system_rows_are_the_system_prompt_wherever_they_stand() -> None:
    raw = codebuddy(("be short", "system", 1, "s1"), ("a", "user", 2, "s1"), ("b", "bot", 3, "s1"))
    (found,) = read(raw, strict=True)
    assert found.system == "be short"


def test_times_that_are_none_lose_no_message() -> None:
    raw = codebuddy(("a", "user", None, "s1"), ("b", "bot", "yesterday", "s1"))
    assert texts(raw) == ["a", "b"]


def test_a_row_of_an_unknown_type_is_noted_or_refused_by_its_number() -> None:
    raw = codebuddy(("a", "user", 1, "s1"), ("b", "ghost", 2, "s1"))
    assert read(raw)[0].count_notes() == {"bad_message": 1}
    with pytest.raises(TranscriptError, match=r"^row 2: .*'ghost'"):
        read(raw, strict=True)


def test_a_database_in_wal_mode_is_read() -> None:
    raw = codebuddy()
    assert texts(raw[:18] + b"\x02\x02" + raw[20:]) == texts(raw)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("CREATE TABLE other (a)", "no table chat_history"),
        ("CREATE TABLE chat_history (a)", "no column message_content"),
        ("CREATE TABLE chat_history (message_content, message_type)", "is empty"),
        ("CREATE VIEW chat_history AS SELECT 1 AS message_content", "no table chat_history"),
    ],
)
def test_a_database_of_something_else_is_refused(schema: str, says: str) -> None:
    database = sqlite3.connect(":memory:")
    database.execute(schema)
    database.commit()
    raw = database.serialize()
    database.close()
    with pytest.raises(TranscriptError, match=says):
        read(raw, "codebuddy")


def test_a_database_that_is_not_whole_is_one_error() -> None:
    raw = codebuddy()
    for broken in (b"no database", raw[:50], raw[:2000], raw[:100] + b"\xff" * (len(raw) - 100)):
        with pytest.raises(TranscriptError) as caught:
            read(broken, "codebuddy")
        assert "\n" not in str(caught.value)


def test_a_column_that_is_computed_is_not_read() -> None:
    script = "ALTER TABLE chat_history ADD COLUMN slow AS (hex(zeroblob(length(agent_id) + 9)));"
    (found,) = read(codebuddy(script=script), strict=True)
    assert not any(message.extra for message in found.messages)


def test_bytes_that_are_no_text_are_replaced() -> None:
    script = (
        "INSERT INTO chat_history (agent_id, message_content, message_type, session_id)"
        " VALUES ('a', CAST(x'61ff' AS TEXT), 'user', 's9'), ('a', x'62', 'bot', 's9');"
    )
    found = read(codebuddy(script=script), strict=True)
    (odd,) = [each for each in found if each.id == "s9"]
    assert [message.text for message in odd.messages] == ["a\ufffd", "b"]
