"""The context builder: what it remembers between two requests changes none of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.tokens.messages import body_tokens
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.turns.request import Profile
from tests.compaction.conversations import FRAME, Talk, image, text


def looking(steps: int) -> Talk:
    """A turn of steps with thinking, among them one with an image; then two short turns."""
    built = Talk()
    built.ask()
    for at in range(steps):
        built.step("x" * 90 if at % 3 else [text("see"), image()], thinking=f"t{at}")
    built.reply()
    for _ in range(2):
        built.ask("and?")
        built.ask("well?")
        built.reply("so")
    return built


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 18), min_size=2, max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_a_builder_builds_after_any_other_request_what_a_new_one_builds(
    lengths: list[int], choice: list[int]
) -> None:
    messages = looking(6).messages
    views = [
        View(),
        View(capped={"c2": "cap"}),
        View(compacted_before=5, shown_results={"c2": "short"}, thinking_from=9),
        View(thinking_from=6),
    ]
    kept = ContextBuilder(Profile(), FRAME)
    for length, chosen in zip(lengths, choice, strict=False):
        shown = messages[:length]
        ours = kept.build(shown, views[chosen])
        fresh = ContextBuilder(Profile(), FRAME).build(shown, views[chosen])
        assert ours.request.encode() == fresh.request.encode()
        assert ours.tokens == fresh.tokens
        assert ours.violations == fresh.violations


def test_a_message_is_sized_once_also_behind_one_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = looking(3).messages
    builder = ContextBuilder(Profile(), FRAME)
    builder.build(messages, View())
    sized: list[msgspec.Raw] = []

    def spy(body: msgspec.Raw, profile: Profile) -> int:
        sized.append(body)
        return body_tokens(body, profile)

    monkeypatch.setattr("llmsession.session.core.request_builder.body_tokens", spy)
    builder.build(messages, View(compacted_before=3, shown_results={"c1": "short"}))
    assert len(sized) == 1


def test_the_first_edit_is_searched_once_for_a_view() -> None:
    messages = tuple(looking(4).messages)
    builder, view = (
        ContextBuilder(Profile(), FRAME),
        View(compacted_before=5, shown_results={"c2": "s"}),
    )
    assert builder._edited_from(messages, view) == 4
    known = builder._edits
    assert builder._edited_from((*messages, messages[0]), view) == 4
    assert builder._edits is known
    assert builder._edited_from(messages[:3], view) is None


def test_thinking_that_is_sent_behind_an_edit_is_found_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = tuple(looking(4).messages)
    careless = View(compacted_before=5, shown_results={"c2": "s"})
    careful = View(compacted_before=5, shown_results={"c2": "s"}, thinking_from=len(messages))
    builder = ContextBuilder(Profile(), FRAME)

    def broken() -> set[str]:
        return {violation.rule for violation in builder.build(messages, careful).violations}

    assert "V9" not in broken()
    sent = builder.project(messages, careless)
    monkeypatch.setattr(builder, "project", lambda *_: sent)
    assert "V9" in broken()
