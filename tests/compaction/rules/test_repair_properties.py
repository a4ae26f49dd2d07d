from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.compaction.rules.check import check_request
from llmsession.compaction.rules.repair import PairingError, tool_pair_repair
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, RequestMessage
from tests.compaction.conversations import call_block, image, result_block, text
from tests.compaction.requests import FOUND, SEARCH, Said
from tests.compaction.rules.test_repair import history, said_by

IDS = st.sampled_from(["c1", "c2", "c3", "c1_2"])
BLOCKS = st.one_of(
    IDS.map(call_block),
    IDS.map(lambda each: result_block(each, "x")),
    st.sampled_from([text("hm"), image(), SEARCH, FOUND, text("so")]),
)
MESSAGES = st.tuples(st.sampled_from(["user", "assistant"]), st.lists(BLOCKS, max_size=5))
ANY = st.lists(MESSAGES, max_size=8)
MODES = st.sampled_from(["synthesise", "strip"])
PAIRED = {"tool_use", "tool_result", "server_tool_use", "web_search_tool_result"}


def runs_of(messages: Sequence[Message]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Neighbours of one role as one message."""
    return [
        (role, [block for _, blocks in group for block in blocks])
        for role, group in groupby(said_by(messages), key=lambda each: each[0])
    ]


def is_paired(messages: Sequence[Message]) -> bool:
    """Each call has exactly one result in the run directly after it, in call order and before
    all else; there are no other results, and no id is used twice."""
    calls_before: list[str] = []
    every_call: list[str] = []
    for role, blocks in runs_of(messages):
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        results = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
        opening = [block.get("tool_use_id") for block in blocks[: len(results)]]
        if results != calls_before or opening != results or (calls and role != "assistant"):
            return False
        calls_before = calls
        every_call += calls
    return not calls_before and len(set(every_call)) == len(every_call)


def others(messages: Sequence[Message]) -> Counter[str]:
    return Counter(
        str(block)
        for _, blocks in said_by(messages)
        for block in blocks
        if block["type"] not in PAIRED
    )


@given(ANY, MODES)
@settings(derandomize=True, max_examples=300, deadline=None)
def test_whatever_comes_in_what_comes_out_is_paired(said: list[Said], mode: Any) -> None:
    messages, _ = tool_pair_repair(history(*said), mode)
    assert is_paired(messages)


@given(ANY, MODES)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_second_repair_changes_nothing(said: list[Said], mode: Any) -> None:
    once, _ = tool_pair_repair(history(*said), mode)
    again, repairs = tool_pair_repair(once, mode)
    assert again is once
    assert repairs == ()


@given(ANY, MODES)
@settings(derandomize=True, max_examples=100, deadline=None)
def test_the_input_is_not_touched_and_other_blocks_all_stay(said: list[Said], mode: Any) -> None:
    messages = history(*said)
    before = [bytes(message.body) for message in messages]
    after, repairs = tool_pair_repair(messages, mode)
    assert [bytes(message.body) for message in messages] == before
    assert others(after) == others(messages)
    assert (after is messages) == (not repairs)


@given(ANY)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_strict_raises_exactly_when_something_would_be_repaired(said: list[Said]) -> None:
    messages = history(*said)
    _, repairs = tool_pair_repair(messages)
    if not repairs:
        assert tool_pair_repair(messages, "strict")[0] is messages
        return
    with pytest.raises(PairingError) as raised:
        tool_pair_repair(messages, "strict")
    assert raised.value.repair == repairs[0]


@given(ANY, MODES)
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_request_of_repaired_messages_keeps_the_rules_on_pairs(
    said: list[Said], mode: Any
) -> None:
    messages, _ = tool_pair_repair(history(*said), mode)
    sent = [RequestMessage(role, encode_blocks(blocks)) for role, blocks in runs_of(messages)]  # type: ignore[arg-type]  # plain dicts
    made = Request(model="m", max_tokens=9, messages=tuple(sent))
    found = {violation.rule for violation in check_request(made, Profile())}
    assert not found & {"V3", "V4", "V6", "V19"}
