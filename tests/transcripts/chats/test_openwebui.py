from __future__ import annotations

import json
from typing import Any

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, write
from llmsession.transcripts.chats.openwebui import read_open_webui
from llmsession.turns.blocks import ImageBlock, ThinkingBlock
from llmsession.turns.usage import Usage
from tests.transcripts.chats.records import START_S, dumped, webui, webui_chat, webui_output
from tests.transcripts.chats.samples import OPEN_WEBUI
from tests.transcripts.shapes import ids, noted, said, shape

QUESTION = webui("m1", None, "user", 0, content="weather?")


def read_all(*messages: dict[str, Any], current: str | None) -> tuple[Conversation, ...]:
    rows = json.loads(json.dumps(messages))
    return read_open_webui(dumped([webui_chat(*rows, current=current)]))


def read(*messages: dict[str, Any], **fields: Any) -> Conversation:
    """The question, and what follows it."""
    current = fields.get("current", messages[-1]["id"] if messages else "m1")
    return read_all(QUESTION, *messages, current=current)[0]


def reply(content: str = "", **fields: Any) -> dict[str, Any]:
    return webui("m2", "m1", "assistant", 1, content=content, done=True, **fields)


def test_the_path_goes_from_the_current_message_to_the_root() -> None:
    older = webui("m2", "m1", "assistant", 1, content="rain")
    newer = webui("m3", "m1", "assistant", 2, content="sun")
    main, branch = read_all(QUESTION, older, newer, current="m2")
    assert (said(main), said(branch)) == (["weather?", "rain"], ["weather?", "sun"])
    assert (branch.parent, branch.shared_turns) == ("c1", 0)


def test_a_current_message_that_is_not_there_is_noted_and_the_newest_branch_is_active() -> None:
    conversation = read(reply("rain"), current="gone")
    assert said(conversation) == ["weather?", "rain"]
    assert noted(conversation, "no_head")


def test_output_items_count_more_than_content() -> None:
    main, branch, other = read_open_webui(OPEN_WEBUI, strict=True)
    assert shape(main) == ["u1:t", "a1:kcc", "u1:rr", "a1:t", "u2:t", "a2:t"]
    assert ids(main) == ["m1", "m2", "m2#1", "m2#2", "m3", "m4"]
    output = [{"type": "message", "content": [{"type": "output_text", "text": "from output"}]}]
    assert said(read(reply("from content", output=output)))[1] == "from output"
    assert (branch.id, other.id, main.system) == ("c1#m5", "c2", "Be brief.")


def test_a_call_after_a_result_is_a_step_of_its_own() -> None:
    output = [*webui_output(("f1", "18")), *webui_output(("f2", "rain"))]
    assert shape(read(reply(output=output)))[1:] == ["a1:c", "u1:r", "a1:c", "u1:r"]


def test_details_elements_of_older_versions_become_thinking_and_calls() -> None:
    html = (
        '<details type="reasoning" done="true" duration="5">\n<summary>Thought for 5 seconds'
        "</summary>\n&gt; first\n> &lt;second&gt;\n</details>\n"
        '<details type="tool_calls" done="true" id="t1" name="get" '
        'arguments="&quot;{\\&quot;q\\&quot;: 1}&quot;" result="&quot;found&quot;" files="">\n'
        "<summary>Tool Executed</summary>\n</details>\nHere it is."
    )
    conversation = read(reply(html))
    assert shape(conversation)[1:] == ["a1:kc", "u1:r", "a1:t"]
    thinking = conversation.messages[1].content[0]
    assert isinstance(thinking, ThinkingBlock)
    assert thinking.thinking.endswith("<second>")
    (call,) = conversation.messages[1].tool_calls
    assert (call.id, call.name, call.input) == ("t1", "get", {"q": 1})
    assert conversation.messages[2].tool_results[0].text == "found"
    assert conversation.messages[3].text == "Here it is."
    (written,) = write([conversation], "open-webui").values()
    assert json.loads(written)[0]["chat"]["history"]["messages"]["m2"]["content"] == html


def test_a_details_element_of_another_kind_stays_text() -> None:
    html = '<details type="code_interpreter">x</details>'
    assert said(read(reply(html)))[1] == html


def test_times_are_seconds() -> None:
    assert read(reply("x")).messages[1].created_at == START_S + 1
    assert read(reply("x", timestamp=START_S + 1.5)).messages[1].created_at == START_S + 1.5


def test_the_newest_context_summary_on_the_path_is_the_summary() -> None:
    first = reply("rain", contextSummary="old")
    more = webui("m3", "m2", "user", 2, content="and?", contextSummary="new")
    other = webui("m4", "m2", "user", 3, content="or?")
    main, branch = read_all(QUESTION, first, more, other, current="m3")
    assert (main.summary, branch.summary) == ("new", "old")
    (written,) = write([main, branch], "open-webui").values()
    assert read_open_webui(written)[0].summary == "new"


def test_usage_is_counted_once_and_cached_tokens_are_no_new_input() -> None:
    """The sum over a tool loop, with cached tokens in it, stands with one reply alone."""
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 90},
    }
    output = [*webui_output(("f1", "18")), *webui_output(("f2", "rain"))]
    conversation = read(reply(output=output, usage=usage))
    counted = [each.usage for each in conversation.messages if each.usage is not None]
    assert counted == [Usage(10, 7, cache_read_tokens=90)]


def test_a_data_uri_is_an_image_and_no_text() -> None:
    url = "data:image/png;base64,aGk="
    question = {**QUESTION, "files": [{"type": "image", "url": url}, {"type": "doc", "id": "d"}]}
    (conversation,) = read_all(question, current="m1")
    image = conversation.messages[0].content[1]
    assert isinstance(image, ImageBlock)
    assert image.source == {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert conversation.messages[0].text == "weather?"
    (written,) = write([conversation], "open-webui").values()
    assert json.loads(written)[0]["chat"]["history"]["messages"]["m1"]["files"] == question["files"]


def test_an_image_in_a_tools_output_is_an_image() -> None:
    parts = [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]
    output = webui_output(("f1", "x"))
    output[1]["output"] = parts
    (result,) = read(reply(output=output)).messages[2].tool_results
    assert isinstance(result.content, list)
    assert result.content[0]["type"] == "image"


def test_a_failed_or_rejected_call_is_an_error_result() -> None:
    output = webui_output(("f1", "no"))
    output[1]["status"] = "rejected"
    assert read(reply(output=output)).messages[2].tool_results[0].is_error is True


def test_a_result_before_its_call_and_a_second_one_are_repaired() -> None:
    call, result = webui_output(("f1", "18"))
    conversation = read(reply(output=[result, call, result]))
    assert shape(conversation)[1:] == ["a1:c", "u1:r"]
    assert conversation.count_notes()["duplicate"] == 1


def test_a_stopped_reply_is_kept_and_interrupts_its_turn() -> None:
    message = {"type": "message", "content": [{"type": "output_text", "text": "half"}]}
    stopped = read(reply(output=[message | {"status": "incomplete"}]))
    running = webui("m2", "m1", "assistant", 1, content="half", done=False)
    assert (stopped.interrupted, read(running).interrupted) == ((1,), (1,))
    assert said(stopped) == ["weather?", "half"]


def test_an_error_without_words_of_the_model_is_no_message() -> None:
    conversation = read(reply("", error={"content": "overloaded"}))
    assert said(conversation) == ["weather?"]
    assert noted(conversation, "error")
    partial = read(reply("half", error={"content": "overloaded"}))
    assert partial.messages[1].error == "overloaded"


def test_an_error_that_is_the_current_message_does_not_switch_the_branch() -> None:
    older = webui("m2", "m1", "assistant", 1, content="rain")
    more = webui("m3", "m2", "user", 2, content="and?")
    failed = webui("m4", "m3", "assistant", 3, error={"content": "overloaded"})
    other = webui("m5", "m1", "assistant", 9, content="sun")
    main, branch = read_all(QUESTION, older, more, failed, other, current="m4")
    assert (ids(main), ids(branch)) == (["m1", "m2", "m3"], ["m1", "m5"])
    assert "no_head" not in main.count_notes()


def test_the_flat_list_of_an_older_version_is_read_in_its_order() -> None:
    rows = [
        {"id": "b", "role": "user", "content": "hi"},
        {"id": "a", "role": "assistant", "content": "hello"},
    ]
    (conversation,) = read_open_webui(dumped([{"id": "c", "chat": {"messages": rows}}]))
    assert ids(conversation) == ["b", "a"]


@pytest.mark.parametrize("bad", [3, {"id": "x", "role": "robot"}])
def test_a_message_that_is_none_is_noted_or_refused_by_chat_and_number(bad: Any) -> None:
    chat = webui_chat(QUESTION, current="m1")
    chat["chat"]["history"]["messages"]["m9"] = bad
    raw = dumped([webui_chat(QUESTION, current="m1"), chat])
    conversation = read_open_webui(raw)[1]
    assert noted(conversation, "bad_record").line == 2
    with pytest.raises(TranscriptError, match=r"^chat 2, record 2: a message without a role"):
        read_open_webui(raw, strict=True)


def test_a_chat_that_is_none_does_not_hide_the_others() -> None:
    raw = dumped([{"id": "x"}, webui_chat(QUESTION, current="m1")])
    (conversation,) = read_open_webui(raw)
    assert noted(conversation, "bad_record").line == 1
    with pytest.raises(TranscriptError, match="record 1: a chat without a history"):
        read_open_webui(raw, strict=True)


def test_an_array_that_was_cut_off_is_read_as_far_as_it_goes() -> None:
    raw = dumped([webui_chat(QUESTION, current="m1"), webui_chat(QUESTION, current="m1")])[:-30]
    (conversation,) = read_open_webui(raw)
    assert said(conversation) == ["weather?"]
    assert noted(conversation, "torn_file").visible
    with pytest.raises(TranscriptError, match=r"^line 1: "):
        read_open_webui(raw, strict=True)
