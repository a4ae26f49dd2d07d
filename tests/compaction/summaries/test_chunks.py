from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.summaries.chunks import chunked, fitted
from llmsession.compaction.summaries.rendering import Passage, body_of, passage_tokens, render
from llmsession.turns.request import Profile
from tests.compaction.conversations import Talk, image, text

PROFILE = Profile(image_tokens=300)


def passages(*lengths: int) -> list[Passage]:
    return [Passage((f"[{n}]", "word " * length)) for n, length in enumerate(lengths)]


def test_what_fits_is_one_run() -> None:
    source = passages(10, 10, 10)
    assert chunked(source, 1_000, PROFILE) == (tuple(source),)


def test_of_nothing_there_is_no_run() -> None:
    assert chunked([], 1_000, PROFILE) == ()


def test_runs_end_where_messages_end() -> None:
    source = passages(100, 100, 100, 100)
    runs = chunked(source, 450, PROFILE)
    assert [len(run) for run in runs] == [2, 2]
    assert [each for run in runs for each in run] == source


def test_a_message_that_is_too_long_by_itself_is_cut_to_its_head_and_its_tail() -> None:
    huge = Passage(("[u1, user]", "START " + "x " * 50_000 + " END"))
    (run,) = chunked([huge], 500, PROFILE)
    assert passage_tokens(run[0], PROFILE) <= 500
    assert "START" in run[0].text
    assert run[0].text.endswith("END")
    assert "the middle is left out" in run[0].text


def test_images_that_are_most_of_what_is_too_long_become_words() -> None:
    talk = Talk().add("user", [text("see"), *[image()] * 5])
    (passage,) = render(talk.messages)
    cut = fitted(passage, 500, PROFILE)
    assert passage_tokens(cut, PROFILE) <= 500
    assert not body_of([cut], shows_media=True)[1]


def test_an_image_beside_a_text_that_is_too_long_stays() -> None:
    talk = Talk().add("user", [text("word " * 9_000), image()])
    (passage,) = render(talk.messages)
    cut = fitted(passage, 1_000, PROFILE)
    assert passage_tokens(cut, PROFILE) <= 1_000
    assert body_of([cut], shows_media=True)[1]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 3_000), max_size=40), st.integers(120, 4_000))
def test_every_message_is_in_one_run_in_order_and_no_run_is_empty_or_too_long(
    lengths: list[int], max_tokens: int
) -> None:
    source = passages(*lengths)
    runs = chunked(source, max_tokens, PROFILE)
    assert all(runs)
    flat = [each for run in runs for each in run]
    assert len(flat) == len(source)
    for shown, given_one in zip(flat, source, strict=True):
        fits = passage_tokens(given_one, PROFILE) <= max_tokens
        assert shown == given_one if fits else shown.text.startswith(f"[{flat.index(shown)}]")
    for run in runs:
        assert sum(passage_tokens(each, PROFILE) for each in run) <= max_tokens
