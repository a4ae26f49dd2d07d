from __future__ import annotations

from collections.abc import Sequence

from llmsession.transcripts import Conversation, Note, left_out
from tests.testing.conversations import call, recording, result, text, tool_loop


def noted(conversation: Conversation, *kinds: str, visible: bool = True) -> Conversation:
    notes = tuple(Note(1, kind, visible=visible) for kind in kinds)
    return Conversation(
        id=conversation.id, format="own", messages=conversation.messages, notes=notes
    )


def long_talk(turns: int) -> Conversation:
    return recording(*([[text("a")], [text("b")]] for _ in range(turns)))


def counted(conversations: Sequence[Conversation]) -> tuple[dict[str, int], int]:
    missing = left_out(conversations)
    return missing.reasons, missing.parts


def test_messages_calls_and_results_are_the_parts_of_a_file() -> None:
    loop = recording(
        [[text("go")], [text("so"), call("c1")], [result("c1")], [call("c2")], [result("c2")]]
    )
    assert counted([loop]) == ({}, 6)


def test_what_is_left_out_counts_by_reason_and_is_part_of_the_file() -> None:
    read = noted(long_talk(2), "orphan_result", "bad_line", "orphan_result")
    assert counted([read]) == ({"orphan_result": 2, "bad_line": 1}, 7)
    said = "3 of 7 calls, results and messages (42.9%) left out: orphan_result 2, bad_line 1"
    assert str(left_out([read])) == said


def test_bookkeeping_summaries_and_broken_links_are_not_left_out() -> None:
    kinds = ("compact_summary", "compaction", "interrupt_marker", "missing_parent")
    assert counted([noted(long_talk(1), *kinds)]) == ({}, 2)
    assert counted([noted(long_talk(1), "snapshot", "queue", visible=False)]) == ({}, 2)


def test_one_percent_may_be_left_out_and_not_more() -> None:
    whole = long_talk(99)
    assert not left_out([noted(whole, "bad_line", "bad_line")]).is_too_much
    assert left_out([noted(whole, *["bad_line"] * 3)]).is_too_much
    assert not left_out([noted(whole)]).is_too_much
    assert not left_out([]).is_too_much


def test_a_message_that_branches_share_counts_once() -> None:
    loop = tool_loop()
    assert counted([loop, loop]) == counted([loop])
