from __future__ import annotations

from typing import Any

from llmsession.compaction.policies import FileReadDedupe, StaleReadBatching
from llmsession.compaction.policies.drafts import Draft
from llmsession.compaction.policies.other_systems.reads import (
    BATCH_BYTES,
    DUPLICATE_NOTICE,
    OUTDATED_NOTICE,
    drop_duplicate_reads,
    saved_enough,
)
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from tests.compaction.conversations import FRAME, Talk, image, required, text
from tests.compaction.policies.plans import PLAIN, budget_for, plan_of, texts_sent

DEDUPE = FileReadDedupe()
CODE = "a = 1\n" * 200


def asking() -> Talk:
    return Talk().ask()


def replaced(built: Talk, view: View | None = None) -> dict[str, str]:
    plan = plan_of(DEDUPE, built.messages, 1_000, view)
    return plan.shown_results if plan else {}


# file_read_dedupe.


def test_all_but_the_last_read_of_a_file_are_replaced_by_the_notice() -> None:
    built = asking()
    built.call("read_file", CODE, path="src/a.py")
    built.call("read_file", CODE + "b", path="src/b.py")
    built.call("Read", CODE + "x", file_path="./src/../src/a.py")
    built.call("mcp__fs__read_file", CODE + "y", path="src//a.py")
    assert replaced(built) == {"c1": DUPLICATE_NOTICE, "c3": DUPLICATE_NOTICE}


def test_the_notice_is_the_original_one() -> None:
    assert DUPLICATE_NOTICE == (
        "[[NOTE] This file read has been removed to save space in the context window. Refer to"
        " the latest file read for the most up to date version of this file.]"
    )


def test_the_line_that_says_whose_result_it_is_stays_before_the_notice() -> None:
    built = asking()
    header = "[read_file for 'a.py'] Result:\n"
    built.call("read_file", header + CODE, path="a.py")
    built.call("read_file", header + CODE, path="a.py")
    assert replaced(built) == {"c1": header + DUPLICATE_NOTICE}


def test_a_part_of_a_file_is_no_copy_of_it() -> None:
    built = asking()
    built.call("read_file", CODE, path="a.py")
    built.call("read_file", CODE, path="a.py", start_line=1, end_line=9)
    assert replaced(built) == {}


def test_a_read_that_failed_or_is_cut_is_no_copy() -> None:
    built = asking()
    built.call("read_file", CODE, path="a.py")
    built.call("read_file", "no such file: " + CODE, path="a.py", is_error=True)
    built.call("read_file", CODE, path="a.py")
    assert replaced(built, View(capped={"c3": "a = 1 [cut]"})) == {}


def test_a_result_with_an_image_is_not_replaced() -> None:
    built = asking()
    built.call("read_file", [text(CODE), image()], path="a.py")
    built.call("read_file", CODE, path="a.py")
    assert replaced(built) == {}


def test_what_prose_calls_a_read_is_none() -> None:
    built = asking()
    built.call("bash", "read a.py\n" + CODE, command="cat a.py")
    built.call("read_file", CODE, path="a.py")
    assert replaced(built) == {}


def test_a_file_that_was_written_whole_counts_and_one_that_was_edited_does_not() -> None:
    built = asking()
    built.call("read_file", CODE, path="a.py")
    built.call("read_file", CODE, path="b.py")
    built.call("write_to_file", "done", path="a.py", content="new")
    built.call("edit", "done", path="b.py", old="a", new="b")
    assert set(replaced(built)) == {"c1"}


def test_the_file_that_a_write_says_is_replaced_and_what_stands_around_it_is_not() -> None:
    built = asking()
    said = f'saved.\n<final_file_content path="a.py">{CODE}</final_file_content>\nGo on.'
    built.call("replace_in_file", said, path="a.py", diff="x")
    built.call("read_file", CODE, path="a.py")
    assert replaced(built) == {"c1": said.replace(CODE, DUPLICATE_NOTICE)}


def test_a_file_in_a_users_message_is_replaced_and_his_words_stay() -> None:
    built = Talk()
    said = f'see <file_content path="a.py">{CODE}</file_content> and <file_content path="b.py">'
    built.ask(f"{said}{CODE}</file_content> please")
    built.call("read_file", CODE, path="a.py")
    built.reply().ask("and now?")
    plan = required(plan_of(DEDUPE, built.messages, 1_000))
    view = View().applied(plan, len(built.messages))
    expected = f'see <file_content path="a.py">{DUPLICATE_NOTICE}</file_content> and'
    assert texts_sent(built.messages, view)[0][0].startswith(expected)
    (left,) = plan.texts.values()
    assert left.endswith(f'<file_content path="b.py">{CODE}</file_content> please')


def test_the_users_newest_message_stays_as_it_is() -> None:
    built = Talk().ask(f'see <file_content path="a.py">{CODE}</file_content>')
    built.call("read_file", CODE, path="a.py")
    assert plan_of(DEDUPE, built.messages, 1_000) is None


def test_marks_without_an_end_cost_no_time() -> None:
    built = Talk().ask('<file_content path="a.py">' * 20_000)
    built.call("read_file", CODE, path="a.py")
    built.ask()
    assert plan_of(DEDUPE, built.messages, 1_000) is None


def test_the_saving_decides_if_something_else_has_to_be_cut() -> None:
    assert saved_enough(30, 100)
    assert not saved_enough(29, 100)
    assert not saved_enough(0, 0)
    built = asking()
    built.call("read_file", CODE, path="a.py")
    built.call("read_file", CODE, path="a.py")
    draft = Draft(View(), built.messages, budget_for(built.messages, 1_000))
    assert drop_duplicate_reads(draft) == len(CODE) - len(DUPLICATE_NOTICE)


# stale_read_batching.


def stale(reads: int, chars: int, **given: Any) -> Talk:
    built = asking()
    for _ in range(reads):
        built.call("read_files", "x", files=[])  # no read of one file
        built.call("read_file", "x" * chars, path="a.py", **given)
    return built


def test_the_constants_are_the_original_ones() -> None:
    assert BATCH_BYTES == 65_536
    assert OUTDATED_NOTICE == "[outdated - see the latest file content]"


def test_outdated_reads_wait_until_they_are_a_batch_and_go_together() -> None:
    policy = StaleReadBatching()
    room = len(OUTDATED_NOTICE)
    assert plan_of(policy, stale(2, BATCH_BYTES + room - 1).messages, 1) is None
    plan = required(plan_of(policy, stale(2, BATCH_BYTES + room).messages, 1))
    assert plan.shown_results == {"c2": OUTDATED_NOTICE}
    plan = required(plan_of(policy, stale(4, 30_000).messages, 1))
    assert plan.shown_results == dict.fromkeys(("c2", "c4", "c6"), OUTDATED_NOTICE)
    assert plan.figures == {"reclaimed_bytes": 3 * (30_000 - room)}


def test_bytes_are_counted_and_not_characters() -> None:
    built = asking()
    for _ in range(2):
        built.call("read_file", "é" * 33_000, path="a.py")
    assert plan_of(StaleReadBatching(), built.messages, 1) is not None


def test_the_same_lines_again_make_a_read_old_and_other_lines_do_not() -> None:
    policy = StaleReadBatching(batch_bytes=1_000)
    built = asking()
    built.call("read_file", "x" * 5_000, path="a.py", offset=1, limit=50)
    built.call("read_file", "y" * 5_000, path="a.py", offset=51, limit=50)
    built.call("read_file", "z" * 5_000, path="a.py", offset=1, limit=50)
    assert set(required(plan_of(policy, built.messages, 1)).shown_results) == {"c1"}
    built.call("read_file", "w" * 5_000, path="a.py")
    assert set(required(plan_of(policy, built.messages, 1)).shown_results) == {"c1", "c2", "c3"}


def test_between_two_batches_the_prefix_stays_as_it_is() -> None:
    policy = StaleReadBatching()
    built = stale(4, 30_000)
    plan = required(plan_of(policy, built.messages, 1))
    view = View().applied(plan, len(built.messages))
    before = project(built.messages, view, PLAIN, FRAME).messages
    built.call("read_file", "x" * 30_000, path="a.py")
    assert plan_of(policy, built.messages, 1, view) is None
    assert project(built.messages, view, PLAIN, FRAME).messages[: len(before)] == before
