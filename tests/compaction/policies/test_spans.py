from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.planning.boundaries import is_safe_cut, newest_request
from llmsession.compaction.policies.spans import begins_turn, left_out, pinned, spans_between
from tests.compaction.conversations import Talk
from tests.compaction.policies.transcripts import Talked, transcripts


def long_turn() -> Talk:
    """u a u(result) a u(result) a u(result): one turn that is open."""
    return Talk().ask("first").reply().ask("second").step("x", times=3)


def test_a_window_begins_with_a_persons_word() -> None:
    messages = long_turn().messages
    assert [at for at, each in enumerate(messages) if begins_turn(each)] == [0, 2]
    assert left_out(messages, 0) == ()
    assert left_out(messages, 1) == ((0, 2),)
    assert left_out(messages, 1, back=True) == ()
    assert left_out(messages, 2) == left_out(messages, 2, back=True) == ((0, 2),)


def test_a_window_behind_the_newest_request_keeps_it_and_begins_with_calls() -> None:
    messages = long_turn().messages
    assert len(messages) == 9
    assert left_out(messages, 3) == ((0, 2),)
    assert left_out(messages, 4) == ((0, 2), (3, 5))  # 4 is a result: forward to the next calls
    assert left_out(messages, 4, back=True) == ((0, 2),)  # back to the calls it answers
    assert left_out(messages, 5, back=True) == ((0, 2), (3, 5))


def test_the_newest_step_stays_in_any_case() -> None:
    messages = long_turn().messages
    assert left_out(messages, 9) == left_out(messages, 8) == ((0, 2), (3, 7))


def test_a_word_that_came_while_tools_ran_stays_with_its_results_and_their_calls() -> None:
    steered = Talk().ask("first").reply().ask("second").step("x", word="wait").step("x", times=2)
    assert newest_request(steered.messages) == 4
    assert pinned(steered.messages) == (2, 3, 4)
    assert left_out(steered.messages, 9) == ((0, 2), (5, 7))


def test_without_a_persons_word_nothing_is_left_out() -> None:
    built = Talk().step("x").step("x")
    assert pinned(built.messages) == ()
    assert left_out(built.messages, 3) == ()


def test_spans_go_around_what_is_pinned() -> None:
    assert spans_between(0, 5, ()) == ((0, 5),)
    assert spans_between(0, 5, (2,)) == ((0, 2), (3, 5))
    assert spans_between(0, 5, (0, 4)) == ((1, 4),)
    assert spans_between(3, 5, (1, 3, 4, 9)) == ()
    assert spans_between(5, 5, (2,)) == spans_between(6, 5, ()) == ()


@settings(derandomize=True, deadline=None, max_examples=80)
@given(transcripts(), st.integers(0, 200), st.booleans())
def test_what_is_left_out_is_cut_safely_and_never_the_newest_request(
    talked: Talked, start: int, back: bool
) -> None:
    messages = talked.messages
    spans = left_out(messages, min(start, len(messages)), back=back)
    for first, end in spans:
        assert is_safe_cut(messages, first)
        assert is_safe_cut(messages, end)
    gone = {at for first, end in spans for at in range(first, end)}
    assert not gone & {newest_request(messages), len(messages) - 1}
    kept = [at for at in range(len(messages)) if at not in gone]
    assert begins_turn(messages[kept[0]])
