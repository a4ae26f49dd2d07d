from __future__ import annotations

import msgspec

from llmsession.turns.request import Profile, Request, RequestMessage
from tests.compaction.conversations import call_block, result_block, text
from tests.compaction.requests import (
    FOUND,
    LOOP,
    SEARCH,
    assistant,
    broken_rules,
    cached,
    fault,
    places,
    raw_tool,
    request,
    thought,
    user,
)


def test_a_tool_loop_is_valid() -> None:
    assert broken_rules(request(*LOOP)) == []


def test_every_field_at_once_can_be_valid() -> None:
    made = request(
        user(cached(text("look"), "1h")),
        assistant(thought("hm"), "I look.", call_block("c1")),
        user(cached(result_block("c1", "one"))),
        tools=(raw_tool("bash", cache_control={"type": "ephemeral", "ttl": "1h"}),),
        thinking={"type": "enabled", "budget_tokens": 1024},
        tool_choice={"type": "auto"},
        context_management={"edits": [{"type": "clear_thinking_20251015"}, {"type": "x"}]},
    )
    assert broken_rules(made, Profile(thinking_opens_tool_loop=True)) == []


def test_v1_there_is_a_message() -> None:
    assert places(request()) == [("V1", "messages")]


def test_v1_there_are_not_too_many_messages() -> None:
    made = request(user("a"), assistant("b"), user("c"))
    assert places(made, Profile(max_messages=2)) == [("V1", "messages")]


def test_v1_the_first_message_is_the_users() -> None:
    made = request(assistant("hello"), user("hi"))
    assert places(made) == [("V1", "messages[0]")]
    assert fault(made) == 'first message must use the "user" role'


def test_v1_a_signed_compaction_block_may_come_first() -> None:
    made = request(assistant({"type": "compaction", "content": "s", "signature": "x"}), user("hi"))
    assert broken_rules(made) == []


def test_v1_neighbours_of_one_role_are_merged() -> None:
    assert places(request(user("a"), user("b"))) == [("V1", "messages[1]")]


def test_v1_neighbours_of_one_role_stay_where_the_profile_does_not_merge() -> None:
    made = request(
        user("a"),
        user("b"),
        assistant(call_block("c1")),
        assistant(call_block("c2")),
        user(result_block("c1", "x")),
        user(result_block("c2", "x")),
        user("more"),
    )
    assert broken_rules(made, Profile(merges_roles=False)) == []


def test_v1_content_is_a_list_of_blocks() -> None:
    for body in (b'"text"', b"{}", b"[1]", b'[{"type":1}]', b"nonsense"):
        made = Request(
            model="m", max_tokens=1, messages=(RequestMessage("user", msgspec.Raw(body)),)
        )
        assert places(made) == [("V1", "messages[0].content")]


def test_v2_the_last_message_is_the_users() -> None:
    made = request(user("a"), assistant("b"))
    assert places(made) == [("V2", "messages[1]")]
    assert fault(made).endswith("The conversation must end with a user message.")


def test_v2_a_prefill_that_is_allowed_has_no_trailing_space() -> None:
    profile = Profile(prefill=True)
    assert broken_rules(request(user("a"), assistant("b")), profile) == []
    assert places(request(user("a"), assistant("b ")), profile) == [("V2", "messages[1]")]


def test_v2_a_paused_turn_is_sent_back_as_it_came() -> None:
    assert broken_rules(request(user("a"), assistant("b", SEARCH))) == []


def test_v2_a_compaction_request_may_end_with_the_assistant() -> None:
    made = request(user("a"), assistant("b"), compaction={"type": "summarize"})
    assert broken_rules(made) == []


def test_v3_every_call_is_answered_in_the_next_user_message() -> None:
    made = request(
        user("look"), assistant(call_block("c1"), call_block("c2")), user(result_block("c1", "one"))
    )
    assert places(made) == [("V3", "messages[1].content[1]")]
    assert "`tool_use` ids were found without `tool_result` blocks" in fault(made)


def test_v3_results_come_before_any_text() -> None:
    made = request(user("look"), assistant(call_block("c1")), user("hm", result_block("c1", "x")))
    assert places(made) == [("V3", "messages[2].content[1]")]


def test_v3_results_come_before_any_text_over_neighbours_too() -> None:
    made = request(
        user("look"), assistant(call_block("c1")), user("hm"), user(result_block("c1", "x"))
    )
    assert places(made, Profile(merges_roles=False)) == [("V3", "messages[3].content[0]")]


def test_v3_a_late_result_does_not_count() -> None:
    made = request(
        user("look"),
        assistant(call_block("c1")),
        user("hm"),
        assistant("hm"),
        user(result_block("c1", "x")),
    )
    assert places(made) == [("V3", "messages[1].content[0]"), ("V4", "messages[4].content[0]")]


def test_v4_every_result_has_its_call_in_the_previous_message() -> None:
    made = request(user("look"), assistant("no"), user(result_block("c9", "x")))
    assert places(made) == [("V4", "messages[2].content[0]")]
    assert "unexpected `tool_use_id` found in `tool_result` blocks: c9" in fault(made)


def test_v4_the_first_message_has_no_result() -> None:
    assert places(request(user(result_block("c9", "x")))) == [("V4", "messages[0].content[0]")]


def test_v4_a_call_has_one_result() -> None:
    results = [result_block("c1", "x"), result_block("c1", "y"), result_block("c1", "z")]
    made = request(user("look"), assistant(call_block("c1")), user(*results))
    assert places(made) == [("V4", "messages[2].content[1]")]


def test_v4_call_ids_are_unique_in_the_request() -> None:
    step = (assistant(call_block("c1")), user(result_block("c1", "x")))
    made = request(user("look"), *step, *step)
    assert places(made) == [("V4", "messages[3].content[0]")]
    assert fault(made) == "`tool_use` ids must be unique: c1"


def test_v5_no_message_is_empty_but_a_final_one_of_the_assistant() -> None:
    assert places(request(user("a"), assistant(), user("b"))) == [("V5", "messages[1].content")]
    assert places(request(user("a"), assistant("b"), user())) == [("V5", "messages[2].content")]
    assert broken_rules(request(user("a"), assistant()), Profile(prefill=True)) == []


def test_v6_a_server_result_follows_its_call() -> None:
    good = request(user("a"), assistant(SEARCH, FOUND, "b"), user("c"))
    assert broken_rules(good) == []
    for blocks in ([FOUND], [FOUND, SEARCH]):
        made = request(user("a"), assistant(*blocks), user("c"))
        assert places(made) == [("V6", "messages[1].content[0]")]
        assert "found in `web_search_tool_result` blocks: srv1" in fault(made)


def test_v6_a_call_in_an_earlier_turn_does_not_count() -> None:
    made = request(user("a"), assistant(SEARCH), user("b"), assistant(FOUND), user("c"))
    assert places(made) == [("V6", "messages[3].content[0]")]


def test_v6_a_server_result_may_wait_for_the_client_tools_of_its_loop() -> None:
    made = request(
        user("a"),
        assistant(SEARCH, call_block("c1")),
        user(result_block("c1", "x")),
        assistant(FOUND, "b"),
        user("c"),
    )
    assert broken_rules(made) == []


def test_v6_a_paused_turn_and_its_continuation_are_one_content() -> None:
    made = request(user("a"), assistant(SEARCH), assistant(FOUND, "b"), user("c"))
    assert broken_rules(made, Profile(merges_roles=False)) == []


def test_v6_mcp_blocks_pair_in_the_same_way() -> None:
    called = {"type": "mcp_tool_use", "id": "m1", "name": "x", "server_name": "s", "input": {}}
    answer = {"type": "mcp_tool_result", "tool_use_id": "m1", "content": []}
    assert broken_rules(request(user("a"), assistant(called, answer), user("c"))) == []
    assert broken_rules(request(user("a"), assistant(answer), user("c"))) == ["V6"]


MANUAL = Profile(thinking_opens_tool_loop=True)
ENABLED = {"type": "enabled", "budget_tokens": 2000}


def test_v8_a_tool_loop_starts_with_thinking() -> None:
    made = request(*LOOP, thinking=ENABLED)
    assert places(made, MANUAL) == [("V8", "messages[1].content[0]")]
    assert fault(made, MANUAL).endswith("but found `text`")


def test_v8_the_first_message_of_the_loop_counts() -> None:
    opening = assistant(thought("hm"), call_block("c1"))
    rest = (user(result_block("c1", "x")), assistant(call_block("c2")))
    made = request(user("a"), opening, *rest, user(result_block("c2", "x")), thinking=ENABLED)
    assert broken_rules(made, MANUAL) == []


def test_v8_concerns_open_loops_with_manual_thinking_only() -> None:
    done = (*LOOP, assistant("so"), user("thanks"))
    assert broken_rules(request(*done, thinking=ENABLED), MANUAL) == []
    assert broken_rules(request(*LOOP, thinking={"type": "adaptive"}), MANUAL) == []
    assert broken_rules(request(*LOOP, thinking=ENABLED)) == []


def test_v16_only_user_and_assistant_speak() -> None:
    between = (*LOOP[:2], ("system", [text("be quick")]), LOOP[2])
    assert places(request(*between)) == [("V16", "messages[2]")]
    assert places(request(("system", [text("x")]), user("a"))) == [("V16", "messages[0]")]
