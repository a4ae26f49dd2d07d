"""What the rules on the structure of a request find: one row a situation."""

from __future__ import annotations

import msgspec
import pytest

from llmsession.turns.request import Profile, Request, RequestMessage
from tests.compaction.conversations import call_block, result_block, text
from tests.compaction.requests import (
    FOUND,
    LOOP,
    SEARCH,
    Broken,
    assistant,
    broken,
    broken_rules,
    cached,
    fault,
    places,
    raw_tool,
    request,
    thought,
    user,
)

MANUAL = Profile(thinking_opens_tool_loop=True)
APART = Profile(merges_roles=False)
PREFILL = Profile(prefill=True)
ENABLED = {"type": "enabled", "budget_tokens": 2000}

C1, C2 = call_block("c1"), call_block("c2")
R1, R2 = result_block("c1", "x"), result_block("c2", "x")
CALLED = (user("look"), assistant(C1))
MCP_CALL = {"type": "mcp_tool_use", "id": "m1", "name": "x", "server_name": "s", "input": {}}
MCP_ANSWER = {"type": "mcp_tool_result", "tool_use_id": "m1", "content": []}
SIGNED = {"type": "compaction", "content": "s", "signature": "x"}


def every_field() -> Request:
    return request(
        user(cached(text("look"), "1h")),
        assistant(thought("hm"), "I look.", C1),
        user(cached(result_block("c1", "one"))),
        tools=(raw_tool("bash", cache_control={"type": "ephemeral", "ttl": "1h"}),),
        thinking={"type": "enabled", "budget_tokens": 1024},
        tool_choice={"type": "auto"},
        context_management={"edits": [{"type": "clear_thinking_20251015"}, {"type": "x"}]},
    )


# fmt: off
VALID: dict[str, tuple[Request, Profile]] = {
    "a tool loop": (request(*LOOP), Profile()),
    "every field at once": (every_field(), MANUAL),
    "v1: a signed compaction block comes first": (
        request(assistant(SIGNED), user("hi")), Profile()),
    "v1: neighbours of one role stay where the profile does not merge": (
        request(
            user("a"), user("b"), assistant(C1), assistant(C2), user(R1), user(R2), user("more")
        ), APART),
    "v2: a prefill that is allowed": (request(user("a"), assistant("b")), PREFILL),
    "v2: a paused turn is sent back as it came": (
        request(user("a"), assistant("b", SEARCH)), Profile()),
    "v2: a compaction request may end with the assistant": (
        request(user("a"), assistant("b"), compaction={"type": "summarize"}), Profile()),
    "v5: a final message of the assistant may be empty": (request(user("a"), assistant()), PREFILL),
    "v6: a server result follows its call": (
        request(user("a"), assistant(SEARCH, FOUND, "b"), user("c")), Profile()),
    "v6: a server result may wait for the client tools of its loop": (
        request(user("a"), assistant(SEARCH, C1), user(R1), assistant(FOUND, "b"), user("c")),
        Profile()),
    "v6: a paused turn and its continuation are one content": (
        request(user("a"), assistant(SEARCH), assistant(FOUND, "b"), user("c")), APART),
    "v6: mcp blocks pair in the same way": (
        request(user("a"), assistant(MCP_CALL, MCP_ANSWER), user("c")), Profile()),
    "v19: a server call may be open behind the results of its reply": (
        request(user("a"), assistant(SEARCH, C1), user(R1)), Profile()),
    "v19: a server call is answered in a later reply of its loop": (
        request(user("a"), assistant(SEARCH, C1), user(R1), assistant(C2), user(R2),
                assistant(FOUND, "b"), user("c")), Profile()),
    "v8: the first message of the loop counts": (
        request(user("a"), assistant(thought("hm"), C1), user(R1), assistant(C2), user(R2),
                thinking=ENABLED), MANUAL),
    "v8: no loop is open": (
        request(*LOOP, assistant("so"), user("thanks"), thinking=ENABLED), MANUAL),
    "v8: thinking is not manual": (request(*LOOP, thinking={"type": "adaptive"}), MANUAL),
    "v8: the profile does not ask for it": (request(*LOOP, thinking=ENABLED), Profile()),
}

BROKEN: dict[str, Broken] = {
    "v1: there is no message": broken(request(), "V1 messages"),
    "v1: there are too many messages": broken(
        request(user("a"), assistant("b"), user("c")), "V1 messages",
        profile=Profile(max_messages=2)),
    "v1: the first message is the assistant's": broken(
        request(assistant("hello"), user("hi")), "V1 messages[0]",
        fault='first message must use the "user" role'),
    "v1: neighbours of one role are not merged": broken(
        request(user("a"), user("b")), "V1 messages[1]"),
    "v2: the last message is the assistant's": broken(
        request(user("a"), assistant("b")), "V2 messages[1]",
        fault="The conversation must end with a user message."),
    "v2: words behind a compaction are a prefill": broken(
        request(user("a"), assistant({"type": "compaction", "content": "s"}, "b")),
        "V2 messages[1]", fault="The conversation must end with a user message."),
    "v2: a prefill has a trailing space": broken(
        request(user("a"), assistant("b ")), "V2 messages[1]", profile=PREFILL),
    "v3: results come behind text": broken(
        request(*CALLED, user("hm", R1)), "V3 messages[2].content[1]"),
    "v3: results come behind the text of a neighbour": broken(
        request(*CALLED, user("hm"), user(R1)), "V3 messages[3].content[0]", profile=APART),
    "v3: a late result does not count": broken(
        request(*CALLED, user("hm"), assistant("hm"), user(R1)),
        "V3 messages[1].content[0]", "V4 messages[4].content[0]"),
    "v4: the first message has a result": broken(
        request(user(result_block("c9", "x"))), "V4 messages[0].content[0]"),
    "v4: a call has three results": broken(
        request(*CALLED, user(R1, result_block("c1", "y"), result_block("c1", "z"))),
        "V4 messages[2].content[1]"),
    "v4: a call id is there twice": broken(
        request(*CALLED, user(R1), assistant(C1), user(R1)), "V4 messages[3].content[0]",
        fault="`tool_use` ids must be unique: c1"),
    "v5: an answer in the middle is empty": broken(
        request(user("a"), assistant(), user("b")), "V5 messages[1].content"),
    "v5: the user's last message is empty": broken(
        request(user("a"), assistant("b"), user()), "V5 messages[2].content"),
    "v6: a server result has no call": broken(
        request(user("a"), assistant(FOUND), user("c")), "V6 messages[1].content[0]",
        fault="found in `web_search_tool_result` blocks: srv1"),
    "v6: a server result stands before its call": broken(
        request(user("a"), assistant(FOUND, SEARCH), user("c")), "V6 messages[1].content[0]",
        "V19 messages[1].content[1]"),
    "v6: a call in an earlier turn does not count": broken(
        request(user("a"), assistant(SEARCH), user("b"), assistant(FOUND), user("c")),
        "V6 messages[3].content[0]", "V19 messages[1].content[0]"),
    "v6: an mcp result has no call": broken(
        request(user("a"), assistant(MCP_ANSWER), user("c")), "V6 messages[1].content[0]"),
    "v8: an open tool loop does not start with thinking": broken(
        request(*LOOP, thinking=ENABLED), "V8 messages[1].content[0]", profile=MANUAL,
        fault="but found `text`"),
    "v16: the system speaks in between": broken(
        request(*LOOP[:2], ("system", [text("be quick")]), LOOP[2]), "V16 messages[2]"),
    "v16: the system speaks first": broken(
        request(("system", [text("x")]), user("a")), "V16 messages[0]"),
    "v19: the user speaks behind a server call": broken(
        request(user("a"), assistant("so", SEARCH), user("b")), "V19 messages[1].content[1]",
        fault="`server_tool_use` with id `srv1` was found without a corresponding"),
    "v19: the user speaks behind a server call of a neighbour": broken(
        request(user("a"), assistant("so"), assistant(SEARCH), user("b")),
        "V19 messages[2].content[0]", profile=APART),
    "v19: the user speaks beside the results of the same reply": broken(
        request(user("a"), assistant(SEARCH, C1), user(R1, "b")), "V19 messages[1].content[0]"),
    "v19: the user speaks later in the loop": broken(
        request(user("a"), assistant(SEARCH, C1), user(R1), assistant("so"), user("b")),
        "V19 messages[1].content[0]"),
}
# fmt: on


@pytest.mark.parametrize(("made", "profile"), VALID.values(), ids=VALID)
def test_what_keeps_the_rules_is_valid(made: Request, profile: Profile) -> None:
    assert broken_rules(made, profile) == []


@pytest.mark.parametrize("row", BROKEN.values(), ids=BROKEN)
def test_what_breaks_a_rule_is_found_at_its_place(row: Broken) -> None:
    row.check()


@pytest.mark.parametrize("body", [b'"text"', b"{}", b"[1]", b'[{"type":1}]', b"nonsense"])
def test_v1_content_is_a_list_of_blocks(body: bytes) -> None:
    made = Request(model="m", max_tokens=1, messages=(RequestMessage("user", msgspec.Raw(body)),))
    assert places(made) == [("V1", "messages[0].content")]


def test_v3_every_call_is_answered_in_the_next_user_message() -> None:
    made = request(user("look"), assistant(C1, C2), user(result_block("c1", "one")))
    assert places(made) == [("V3", "messages[1].content[1]")]
    assert "`tool_use` ids were found without `tool_result` blocks" in fault(made)


def test_v4_every_result_has_its_call_in_the_previous_message() -> None:
    made = request(user("look"), assistant("no"), user(result_block("c9", "x")))
    assert places(made) == [("V4", "messages[2].content[0]")]
    assert "unexpected `tool_use_id` found in `tool_result` blocks: c9" in fault(made)
