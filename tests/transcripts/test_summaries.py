"""What a summary in a file stands for."""

from __future__ import annotations

import pytest

from llmsession.transcripts import FORMATS, detect, read, read_own, write, write_own

from .summaries import KEPT, SUMMARY, Kept


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT.keys())
def test_a_summary_is_read_with_how_many_messages_it_stands_for(kept: Kept) -> None:
    assert detect(kept.files) == kept.format
    conversation = read(kept.files)[kept.place]
    assert [message.text for message in conversation.messages] == kept.said
    assert (conversation.summary, conversation.summary_upto) == (SUMMARY, kept.upto)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT.keys())
def test_our_own_format_keeps_it(kept: Kept) -> None:
    conversation = read(kept.files)[kept.place]
    again = read_own(write_own(conversation))
    assert (again.summary, again.summary_upto) == (SUMMARY, kept.upto)


def test_a_format_that_is_written_with_a_summary_keeps_its_place() -> None:
    conversation = read(KEPT["pi"].files)
    again = read(write(conversation, "pi"))[0]
    assert (again.summary, again.summary_upto) == (SUMMARY, 2)
    whole = read(KEPT["neurolink, all messages"].files)
    again = read(write(whole, "pi"))[0]
    assert (again.summary, again.summary_upto) == (SUMMARY, 6)
    unknown = read(KEPT["chainreview"].files)
    assert read(write(unknown, "pi"))[0].summary_upto == 0


def test_each_format_is_looked_at_that_keeps_a_summary() -> None:
    # These files have no summary of what was said: their systems keep it in memory, or nowhere.
    without = {
        "anthropic-messages", "chatbot-ui", "chatbot-ui-rows", "chatgpt", "cline-classic",
        "gemini-cli", "jan", "minisearch", "openai-chat", "cassette",
    }  # fmt: skip
    assert {kept.format for kept in KEPT.values()} == FORMATS.keys() - without
