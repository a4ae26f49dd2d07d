from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from llmsession.errors import TranscriptError
from llmsession.transcripts import Conversation, Note, left_out, read_claude_code
from llmsession.turns.blocks import ImageBlock, ThinkingBlock, ToolUseBlock
from llmsession.turns.usage import Usage
from tests.transcripts.conftest import ClaudeFile
from tests.transcripts.shapes import noted, said, shape

MARKER = [{"type": "text", "text": "[Request interrupted by user]"}]


def read(file: Any, **options: Any) -> Conversation:
    (conversation,) = read_claude_code(file.bytes(), **options)
    return conversation


class Line(NamedTuple):
    """A call of a method of `ClaudeFile`. The id of line n is ``uuid-n``."""

    method: str
    arguments: tuple[Any, ...]
    fields: dict[str, Any]


def user(content: Any, **fields: Any) -> Line:
    return Line("user", (content,), fields)


def meta(content: str, **fields: Any) -> Line:
    return user(content, isMeta=True, **fields)


def says(response: str, text: str, **fields: Any) -> Line:
    return Line("says", (response, text), fields)


def calls(response: str, *ids: str, **fields: Any) -> Line:
    return Line("calls", (response, *ids), fields)


def result(call: str, text: str = "done", **fields: Any) -> Line:
    return Line("result", (call, text), fields)


def line(type: str, **fields: Any) -> Line:
    return Line("line", (type,), fields)


def bare(type: str, **fields: Any) -> Line:
    return Line("bare", (type,), fields)


def queue(operation: str, **fields: Any) -> Line:
    return bare("queue-operation", operation=operation, **fields)


def attached(**attachment: Any) -> Line:
    return line("attachment", attachment=attachment)


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def file_of(*lines: Line) -> ClaudeFile:
    file = ClaudeFile()
    for line in lines:
        getattr(file, line.method)(*line.arguments, **line.fields)
    return file


class Case(NamedTuple):
    lines: list[Line]
    shape: str
    notes: Sequence[str] = ()
    """Line, kind, "!" if the model saw what is not there, and detail."""
    interrupted: tuple[int, ...] = ()
    said: list[str] | None = None
    unanswered: tuple[str, ...] = ()
    unfinished: tuple[int, ...] | None = None
    id: str = "s1"


CASES = {
    "parallel results out of order become one message in call order": Case(
        [user("go"), calls("m1", "c1"), calls("m1", "c2"), result("c2", "two"),
         result("c1", "one", parentUuid="uuid-2"), says("m2", "done")],
        "u1:t a1:cc u1:rr a1:t",
    ),
    "a result between two lines of one response stands after the response": Case(
        [user("go"), calls("m1", "c1"), result("c1"), calls("m1", "c2", parentUuid="uuid-2"),
         result("c2"), says("m2", "done")],
        "u1:t a1:cc u1:rr a1:t",
    ),
    "sidechains are noted and left out": Case(
        [user("go"), says("m1", "hi"), user("a task", isSidechain=True, parentUuid=None),
         user("more", parentUuid="uuid-2")],
        "u1:t a1:t u2:t", ["3 sidechain user"],
    ),
    "a file of only sidechains is the sub-agent's conversation": Case(
        [user("a task", isSidechain=True), says("m1", "hi", isSidechain=True)], "u1:t a1:t"
    ),
    "history goes on across a compaction without its summary": Case(
        [user("go"), calls("m1", "c1"), result("c1"),
         line("system", subtype="compact_boundary", parentUuid=None, logicalParentUuid="uuid-3"),
         user("It was about ...", isCompactSummary=True, isVisibleInTranscriptOnly=True),
         says("m2", "done")],
        "u1:t a1:c u1:r a1:t", ["4 compact_boundary", "5 compact_summary! It was about ..."],
    ),
    "a synthetic reply never was a request": Case(
        [user("<command-name>/exit</command-name>"),
         says("m1", "No response requested.", message={"model": "<synthetic>"}),
         user("go on"), says("m2", "yes")],
        "u1:tt a1:t", ["2 synthetic No response requested."],
    ),
    "an API error ends its turn as interrupted": Case(
        [user("go"), says("m1", "Oh", message={"model": "<synthetic>"}, isApiErrorMessage=True),
         user("again"), says("m2", "yes")],
        "u1:t u2:t a2:t", ["2 synthetic Oh"], interrupted=(1,),
    ),
    "an interrupt marker ends its turn and is noted": Case(
        [user("go"), user(MARKER), user("go there"), calls("m1", "c1"),
         result("c1", "The user doesn't want to proceed"),
         user([{"type": "text", "text": "[Request interrupted by user for tool use]"}]),
         user("stop"), says("m2", "ok")],
        "u1:t u2:t a2:c u2:r u3:t a3:t", ["2 interrupt_marker! [Request interrupted by user]",
         "6 interrupt_marker! [Request interrupted by user for tool use]"],
        interrupted=(1, 2), unfinished=(1, 2),
    ),
    "a marker after a partial reply interrupts a turn that looks finished": Case(
        [user("go"), Line("assistant", ("m1", {"type": "thinking", "thinking": "hm"}), {}),
         user(MARKER)],
        "u1:t a1:k",
        ["3 interrupt_marker! [Request interrupted by user]"], interrupted=(1,), unfinished=(),
    ),
    "a new prompt in a tool loop starts a turn and marks the one before": Case(
        [user("go"), calls("m1", "c1"), result("c1"), user("no, the other"), says("m2", "ok")],
        "u1:t a1:c u1:r u2:t a2:t", interrupted=(1,),
    ),
    "a text beside a result is a steer and stands after the results": Case(
        [user("go"), calls("m1", "c1", "c2"),
         user([{"type": "tool_result", "tool_use_id": "c2", "content": "done"},
               {"type": "text", "text": "mind the tests"}]),
         result("c1"), says("m2", "ok")],
        "u1:t a1:cc u1:rrt a1:t",
    ),
    # Seen: the prompt is taken out between two lines of one response, before its call.
    "a queued prompt that is taken out before a call is a steer of the open step": Case(
        [user("go"), says("m1", "I look"), queue("enqueue", content="any tests?"),
         queue("remove"), calls("m1", "c1"), result("c1"), says("m2", "no tests")],
        "u1:t a1:tc u1:rt a1:t",
        ["3 queue enqueue any tests?", "4 steer is part of a user message of turn 1"],
        said=["go", "I look", "any tests?", "no tests"],
    ),
    "a queued prompt that is taken out after a result is a steer of the open step": Case(
        [user("go"), says("m1", "I look"), queue("enqueue", content="any tests?"),
         calls("m1", "c1"), result("c1"), queue("remove"), says("m2", "no tests")],
        "u1:t a1:tc u1:rt a1:t",
        ["3 queue enqueue any tests?", "6 steer is part of a user message of turn 1"],
        said=["go", "I look", "any tests?", "no tests"],
    ),
    "a queued prompt that became a line of its own is there once": Case(
        [user("go"), queue("enqueue", content="next"), says("m1", "ok"), queue("dequeue"),
         user("next")],
        "u1:t a1:t u2:t", ["2 queue enqueue next", "4 queue dequeue next"],
    ),
    "an attached queued prompt is a steer and is there once": Case(
        [user("go"), calls("m1", "c1"), queue("enqueue", content="mind"), result("c1"),
         queue("remove"), attached(type="queued_command", prompt="mind"), says("m2", "ok")],
        "u1:t a1:c u1:rt a1:t", ["3 queue enqueue mind",
         "5 queue remove mind",
         "6 steer is part of a user message of turn 1"],
    ),
    "an attachment of a kind that is not known is named as seen by the model": Case(
        [user("go"), attached(type="never_seen", value={"a": "b"}), says("m1", "yes")],
        "u1:t a1:t", ["2 attachment! never_seen"],
    ),
    "an attachment whose words are not in the file is named and not left out": Case(
        [user("go"), attached(type="plan_mode", planFilePath="/p"), says("m1", "yes")],
        "u1:t a1:t", ["2 attachment_without_text! plan_mode"],
    ),
    "an attachment that no request followed was not sent": Case(
        [user("go"), says("m1", "yes"), attached(type="todo_reminder", content=[])],
        "u1:t a1:t", ["3 attachment todo_reminder was not sent"],
    ),
    "an attachment that the application keeps for itself is bookkeeping": Case(
        [user("go"), attached(type="command_permissions", allowedTools=["x"]), says("m1", "yes")],
        "u1:t a1:t", ["2 attachment command_permissions"],
    ),
    "an attachment of a message that was taken back goes with it": Case(
        [user("go"), attached(type="date_change", newDate="2026-01-02"),
         user("no, this", parentUuid=None), says("m1", "yes")],
        "u1:t a1:t", ["1 branch! user text go", "2 branch! attachment date_change"],
    ),
    "attachments stand with the message or the results that they came with": Case(
        [user("go"),
         attached(type="file", filename="/a.py",
                  content={"type": "text", "file": {"filePath": "/a.py", "content": "x = 1"}}),
         calls("m1", "c1"), result("c1"),
         attached(type="edited_text_file", filename="/b.py", snippet="1\ty = 2"),
         says("m2", "done")],
        "u1:tt a1:c u1:rt a1:t",
        ["2 attachment file is part of the user message of turn 1",
         "5 attachment edited_text_file is part of the user message of turn 1"],
        said=["go" + reminder("The file /a.py is attached.\nx = 1"),
              reminder("The file /b.py was changed. The changed lines:\n1\ty = 2"), "done"],
    ),
    "a file that begins at a compact boundary begins with its summary": Case(
        [line("system", subtype="compact_boundary", parentUuid=None, logicalParentUuid="gone"),
         user("It was about ...", isCompactSummary=True, isVisibleInTranscriptOnly=True),
         calls("m1", "c1"), result("c1"), says("m2", "done"), user("thanks"), says("m3", "bye")],
        "u1:t a1:c u1:r a1:t u2:t a2:t",
        ["1 missing_parent! gone", "1 compact_boundary",
         "2 compact_summary the conversation begins with it"],
        said=["It was about ...", "done", "thanks", "bye"],
    ),
    "meta text before a prompt is a block of its message": Case(
        [meta("Caveat: ..."), user("<local-command-stdout>ok</local-command-stdout>"),
         user("go"), says("m1", "ok")],
        "u1:ttt a1:t", ["1 meta is part of the user message of turn 1"],
    ),
    "a skill's text stands after the result that brought it": Case(
        [user("go"), calls("m1", "c1"), result("c1"), meta("A skill", sourceToolUseID="c1"),
         calls("m1", "c2", parentUuid="uuid-2"), result("c2"), says("m2", "ok")],
        "u1:t a1:cc u1:rrt a1:t", ["4 meta is part of the user message of turn 1"],
    ),
    "an orphan call stays unanswered in the messages": Case(
        [user("go"), calls("m1", "c1", "c2"), result("c2")], "u1:t a1:cc u1:r",
        unanswered=("c1",), unfinished=(1,),
    ),
    "an orphan result is noted and left out": Case(
        [result("c9"), user("go")], "u1:t",
        ["1 orphan_result! no call c9 in the recording"],
    ),
    "a second result of a call is noted and left out": Case(
        [user("go"), calls("m1", "c1"), result("c1", "first"), result("c1", "second")],
        "u1:t a1:c u1:r", ["4 duplicate! call c1 has its result; the first one stays"],
    ),
    "a uuid that comes back with other content is a visible loss": Case(
        [user("go"), user("stop", uuid="uuid-1")], "u1:t",
        ["2 duplicate! line uuid-1 occurs twice, with different content"], said=["go"],
    ),
    "a call id that comes back is noted and left out": Case(
        [user("go"), calls("m1", "c1"), calls("m1", "c1"), result("c1")], "u1:t a1:c u1:r",
        ["3 duplicate! call c1 occurs twice"],
    ),
    "a rewound branch is noted block by block": Case(
        [user("go"), says("m1", "hi"), user("left"), calls("m2", "c1"), result("c1"),
         user("right", parentUuid="uuid-2"), says("m3", "ok")],
        "u1:t a1:t u2:t a2:t", ["3 branch! user text left",
         "4 branch! assistant tool_use c1",
         "5 branch! user tool_result c1"], said=["go", "hi", "right", "ok"],
    ),
    "where a parent is missing the line before stands in": Case(
        [user("go"), says("m1", "hi"), line("progress", parentUuid="lost"), user("more")],
        "u1:t a1:t u2:t", ["3 missing_parent! lost", "3 progress"],
    ),
    "parents that go in a circle end the walk": Case(
        [user("go", parentUuid="uuid-2"), says("m1", "hi")], "u1:t a1:t",
    ),
    "a reply before any user text is noted and left out": Case(
        [says("m0", "late"), user("go")], "u1:t",
        ["1 no_user_message! a reply before any user text"],
    ),
    "bookkeeping lines are noted and only an unknown one with a message is a loss": Case(
        [user("go"), line("progress"), line("system", subtype="turn_duration"),
         bare("file-history-snapshot", messageId="x", snapshot={}),
         bare("summary", summary="About", leafUuid="elsewhere"), bare("last-prompt"),
         bare("something-new"), bare("something-said", message={"role": "user", "content": "x"})],
        "u1:t",
        ["2 progress", "3 turn_duration", "4 snapshot", "5 summary About", "6 last_prompt",
         "7 unknown_type something-new", "8 unknown_type! something-said"],
    ),
    "a resumed session under a new id is one conversation": Case(
        [user("one"), says("m1", "1"), user("two", sessionId="s2")], "u1:t a1:t u2:t", id="s2",
    ),
    "a lone surrogate becomes a replacement character": Case(
        [user("a\ud800b")], "u1:t", ["1 surrogates 1 objects"], said=["a\ufffdb"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_lines_become_turns_and_what_is_left_out_is_noted(case: Case) -> None:
    conversation = read(file_of(*case.lines))
    assert " ".join(shape(conversation)) == case.shape
    notes = [
        f"{note.line} {note.what}{'!' if note.visible else ''} {note.detail}".strip()
        for note in conversation.notes
    ]
    assert notes == list(case.notes)
    assert conversation.interrupted == case.interrupted
    assert case.said in (None, said(conversation))
    assert conversation.unanswered == case.unanswered
    assert case.unfinished in (None, conversation.unfinished)
    assert conversation.id == case.id


def test_lines_of_one_response_become_one_message_with_its_usage_counted_once(
    claude_file: Any,
) -> None:
    claude_file.user("hello")
    claude_file.assistant("m1", {"type": "thinking", "thinking": "hm", "signature": "s"})
    claude_file.says("m1", "hi")
    claude_file.calls("m1", "c1", message={"stop_reason": "tool_use"})
    claude_file.result("c1")
    reply = read(claude_file).messages[1]
    assert [type(block) for block in reply.content][::2] == [ThinkingBlock, ToolUseBlock]
    assert reply.text == "hi"
    assert reply.usage == Usage(3, 1, cache_read_tokens=10, cache_write_tokens=7)
    assert (reply.model, reply.provider, reply.stop_reason) == ("claude-x", "anthropic", "tool_use")


def test_the_last_lines_usage_is_the_final_one(claude_file: Any) -> None:
    claude_file.user("hello")
    claude_file.says("m1", "a", message={"usage": {"input_tokens": 3, "output_tokens": 1}})
    claude_file.says("m1", "b", message={"usage": {"input_tokens": 3, "output_tokens": 90}})
    assert read(claude_file).messages[1].usage == Usage(3, 90)


def test_messages_carry_ids_turns_and_times_in_seconds(claude_file: Any) -> None:
    claude_file.user("one")
    claude_file.says("m1", "1")
    claude_file.user("two")
    claude_file.calls("m2", "c1")
    claude_file.result("c1")
    claude_file.says("m3", "2")
    conversation = read(claude_file)
    assert [message.id for message in conversation.messages] == [
        "s1/u1.0", "s1/a1.0", "s1/u2.0", "s1/a2.0", "s1/u2.1", "s1/a2.1",
    ]  # fmt: skip
    assert conversation.messages[0].created_at == 1768248000.5
    assert conversation.messages[1].created_at == 1768248001.5
    assert (conversation.id, conversation.format) == ("s1", "claude-code")


def test_a_line_that_is_there_twice_counts_once(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    claude_file.lines.append(claude_file.lines[1])
    conversation = read(claude_file)
    assert shape(conversation) == ["u1:t", "a1:t"]
    assert noted(conversation, "duplicate").line == 3
    assert not noted(conversation, "duplicate").visible


def test_the_title_is_the_summary_of_this_session_or_the_users_own(claude_file: Any) -> None:
    here = claude_file.user("go")
    claude_file.bare("summary", summary="Ours", leafUuid=here)
    claude_file.bare("summary", summary="Another's", leafUuid="elsewhere")
    assert read(claude_file).title == "Ours"
    claude_file.bare("custom-title", customTitle="Mine")
    assert read(claude_file).title == "Mine"


def test_sessions_that_are_not_linked_are_conversations_of_their_own(claude_file: Any) -> None:
    claude_file.user("one")
    claude_file.user("two", sessionId="s2", parentUuid=None)
    claude_file.says("m1", "2", sessionId="s2")
    first, second = read_claude_code(claude_file.bytes())
    assert (first.id, shape(first)) == ("s1", ["u1:t"])
    assert (second.id, shape(second)) == ("s2", ["u1:t", "a1:t"])


def test_blocks_keep_their_bytes() -> None:
    block = b'{"type": "new_kind",  "caf\\u00e9": 1.50}'
    line = b'{"type":"user","uuid":"a","message":{"role":"user","content":[' + block + b"]}}\n"
    (conversation,) = read_claude_code(line)
    assert bytes(conversation.messages[0].body) == b"[" + block + b"]"


def test_a_torn_last_line_is_noted_even_in_strict_mode(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    data = claude_file.bytes() + b'{"type":"user","mess'
    (conversation,) = read_claude_code(data, strict=True)
    assert shape(conversation) == ["u1:t", "a1:t"]
    assert noted(conversation, "torn_line") == Note(
        3, "torn_line", '{"type":"user","mess', visible=True
    )


def test_a_bad_middle_line_is_noted_or_in_strict_mode_refused_by_its_number(
    claude_file: Any,
) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    rows = claude_file.bytes().split(b"\n")
    data = b"\n".join([rows[0], b"{oops", *rows[1:]])
    assert shape(read_claude_code(data)[0]) == ["u1:t", "a1:t"]
    assert noted(read_claude_code(data)[0], "bad_line").line == 2
    with pytest.raises(TranscriptError, match=r"^line 2: ") as caught:
        read_claude_code(data, strict=True)
    assert caught.value.line == 2


def test_a_line_with_fields_of_the_wrong_kind_is_a_bad_line(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.line("user", message={"role": "user", "content": 5})
    assert noted(read(claude_file), "bad_line").line == 2
    with pytest.raises(TranscriptError, match=r"^line 2: "):
        read(claude_file, strict=True)


def test_bytes_that_are_not_utf8_are_replaced_or_in_strict_mode_refused(claude_file: Any) -> None:
    claude_file.user("a?b")
    data = claude_file.bytes().replace(b"?", b"\xff")
    (conversation,) = read_claude_code(data)
    assert conversation.messages[0].text == "a\ufffdb"
    with pytest.raises(TranscriptError, match="line 1: not valid UTF-8"):
        read_claude_code(data, strict=True)


def test_a_bom_crlf_and_blank_lines_change_nothing(claude_file: Any) -> None:
    claude_file.user("go")
    claude_file.says("m1", "hi")
    odd = b"\xef\xbb\xbf" + claude_file.bytes().replace(b"\n", b"\r\n\r\n")
    assert read_claude_code(odd)[0].messages == read(claude_file).messages


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n \n",
        b"no json at all\nreally\n",
        b"\x00\xff\xfe" * 50,
        b'{"type":"session_meta","payload":{}}\n',
        b"[1,2]\n3\n",
        b'{"type":"user","uuid":5,"message":5}\n',
        b"[" * 5000,
        json.dumps({"messages": [1, 2]}, indent=1).encode(),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(TranscriptError) as caught:
        read_claude_code(data)
    assert "\n" not in str(caught.value)
    assert "not a Claude Code session file" in str(caught.value)


IMAGE = {"type": "image", "file": {"base64": "aGk=", "type": "image/jpeg"}}
ATTACHMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"type": "file", "filename": "/p.jpg", "content": IMAGE}, "/p.jpg"),
    "folder": ({"type": "directory", "path": "/src", "content": "a\nb"}, "/src is attached.\na\nb"),
    "selection": (
        {"type": "selected_lines_in_ide", "filename": "/a", "lineStart": 3, "lineEnd": 4,
         "content": "x"},
        "lines 3 to 4 of /a:\nx",
    ),
    "memory": (
        {"type": "nested_memory", "path": "/M.md", "content": {"path": "/M.md", "content": "be"}},
        "Contents of /M.md:\nbe",
    ),
    "tasks": (
        {"type": "task_reminder", "content": [{"status": "pending", "content": "write"}]},
        "1. [pending] write",
    ),
    "hook": (
        {"type": "hook_additional_context", "hookName": "Start", "content": ["one", "two"]},
        "The hook Start adds:\none\ntwo",
    ),
    "diagnostics": ({"type": "diagnostics", "files": [{"uri": "a", "diagnostics": []}]}, '"uri"'),
    "a kind without a reader that holds a text": ({"type": "new_kind", "text": "mind"}, "mind"),
    "a list of texts": ({"type": "new_kind", "addedBlocks": ["one", "two"]}, "one\ntwo"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ATTACHMENTS)
def test_an_attachment_is_read_as_what_was_sent(kind: str) -> None:
    attachment, text = ATTACHMENTS[kind]
    conversation = read(file_of(user("go"), attached(**attachment), says("m1", "yes")))
    first = conversation.messages[0]
    assert text in first.text
    assert left_out([conversation]).count == 0
    assert any(isinstance(block, ImageBlock) for block in first.content) is (kind == "image")


@pytest.mark.parametrize("kind", ["file", "diagnostics", "nested_memory", "mcp_resource", "todo"])
@pytest.mark.parametrize("value", [None, 3, [], [1], {}, {"content": 3}, {"file": []}])
def test_an_attachment_in_no_known_form_is_never_an_error(kind: str, value: Any) -> None:
    fields = dict.fromkeys(("content", "files", "skills", "prompt"), value)
    conversation = read(file_of(user("go"), attached(type=kind, **fields), says("m1", "yes")))
    assert conversation.messages[-1].text == "yes"


def test_a_queued_prompt_of_blocks_is_read_with_its_image() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    prompt = [{"type": "text", "text": "look"}, {"type": "image", "source": source}]
    lines = [
        user("go"), calls("m1", "c1"), result("c1"), queue("enqueue", content="look"),
        queue("remove"), attached(type="queued_command", prompt=prompt), says("m2", "yes"),
    ]  # fmt: skip
    assert " ".join(shape(read(file_of(*lines)))) == "u1:t a1:c u1:rti a1:t"
