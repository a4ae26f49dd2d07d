from __future__ import annotations

import msgspec

from llmsession.compaction.summaries.rendering import RUNGS, Caps, body_of, render, render_result
from llmsession.turns.blocks import ToolResultBlock, parse_blocks
from tests.compaction.conversations import Talk, image, text


def told(talk: Talk, caps: Caps = RUNGS[0]) -> str:
    return "\n".join(passage.text for passage in render(talk.messages, caps))


def test_a_conversation_is_told_by_who_said_what_with_calls_and_results() -> None:
    talk = Talk().ask("look").step("the file", thinking="hmm").reply("seen")
    lines = told(talk).split("\n")
    assert lines[:2] == ["[u1, user]", "look"]
    assert lines[2] == "[a1, assistant]"
    assert lines[3].startswith("call c1: ")
    assert lines[4] == "[u1, user]"
    assert lines[5].startswith("result of c1 (")
    assert lines[5].endswith("): the file")
    assert lines[6:] == ["[a1, assistant]", "seen"]


def test_thinking_is_not_told_and_a_message_of_thinking_alone_is_none() -> None:
    talk = Talk().ask()
    talk.add("assistant", [{"type": "thinking", "thinking": "secret", "signature": "s"}])
    assert len(render(talk.messages)) == 1
    assert "secret" not in told(talk)


def test_a_result_is_told_in_a_thousand_characters_with_the_way_to_the_whole() -> None:
    talk = Talk().ask().step("word " * 10_000)
    passage = render(talk.messages)[-1]
    assert len(passage.text) < 1_100
    assert 'recall(id="c1"' in passage.text


def test_the_input_of_a_call_is_told_in_a_thousand_characters() -> None:
    talk = Talk().ask()
    use = {"type": "tool_use", "id": "c1", "name": "write", "input": {"text": "y" * 50_000}}
    talk.add("assistant", [use])
    assert len(told(talk)) < 1_200
    assert "call c1: write" in told(talk)


def test_a_failed_result_is_told_as_one() -> None:
    talk = Talk().ask().step("no such file", is_error=True)
    assert ", an error: no such file" in told(talk)


def test_an_image_stays_a_block_behind_a_line_that_names_its_result() -> None:
    talk = Talk().ask().step([text("a picture"), image()])
    body, has_media = body_of(render(talk.messages), shows_media=True)
    blocks = msgspec.json.decode(body)
    assert has_media
    assert [block["type"] for block in blocks] == ["text", "image"]
    assert blocks[0]["text"].endswith("[image in the result of c1]")
    assert blocks[1] == image()


def test_where_no_images_are_taken_their_place_is_told_in_words() -> None:
    talk = Talk().add("user", [text("see"), image()])
    body, has_media = body_of(render(talk.messages), shows_media=False)
    (block,) = parse_blocks(body)
    assert not has_media
    assert b'"image"' not in bytes(body)
    assert "[image: not shown here]" in bytes(body).decode()
    assert block


def test_of_many_images_the_newest_are_shown() -> None:
    talk = Talk()
    for n in range(30):
        talk.ask()
        source = {"type": "url", "url": f"https://example.org/{n}"}
        talk.add("user", [{"type": "image", "source": source}])
    body = bytes(body_of(render(talk.messages), shows_media=True)[0]).decode()
    assert body.count('"type":"image"') == 20
    assert "example.org/29" in body
    assert "example.org/10" in body
    assert "example.org/9" not in body


def test_a_cache_mark_on_an_image_is_not_sent_on() -> None:
    talk = Talk().add("user", [{**image(), "cache_control": {"type": "ephemeral"}}])
    body, _ = body_of(render(talk.messages), shows_media=True)
    assert b"cache_control" not in bytes(body)


def test_a_block_that_we_do_not_know_is_told_by_its_type() -> None:
    talk = Talk()
    talk.add("assistant", [{"type": "web_search_tool_result", "content": "sealed"}, text("x")])
    assert "[web_search_tool_result]" in told(talk)
    assert "sealed" not in told(talk)


def test_a_result_without_text_is_told_all_the_same() -> None:
    passage = render_result(ToolResultBlock("c1", [image()]), "look", 500)
    assert passage.text.startswith("result of c1 (look): (no text)")


def test_equal_messages_are_told_in_equal_bytes() -> None:
    talk = Talk().ask().step([text("a"), image()], "b" * 3_000)
    one, other = (body_of(render(talk.messages), shows_media=True)[0] for _ in range(2))
    assert bytes(one) == bytes(other)
