"""Requests and histories written as what was said, and what the validity rules find in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from llmsession.compaction.rules.check import check_against_history, check_request
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile, Request, RequestMessage
from tests.compaction.conversations import Talk, call_block, image, result_block, text

Said = tuple[str, Sequence[Any]]

PROFILE = Profile()
SEARCH = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv1", "content": []}


def raw_tool(name: str, **fields: Any) -> msgspec.Raw:
    return msgspec.Raw(encode_json({"name": name, "input_schema": {"type": "object"}, **fields}))


BASH = (raw_tool("bash"),)


def request(*said: Said, tools: tuple[msgspec.Raw, ...] = BASH, **options: Any) -> Request:
    messages = [RequestMessage(role, encode_blocks(blocks)) for role, blocks in said]  # type: ignore[arg-type]  # of two types
    return Request(
        model="m", max_tokens=4000, tools=tools, messages=tuple(messages), options=options
    )


def user(*blocks: Any) -> Said:
    return "user", [text(block) if isinstance(block, str) else block for block in blocks]


def assistant(*blocks: Any) -> Said:
    return "assistant", [text(block) if isinstance(block, str) else block for block in blocks]


def thought(value: str, signature: str | None = "sig") -> dict[str, Any]:
    block = {"type": "thinking", "thinking": value}
    return block if signature is None else {**block, "signature": signature}


def cached(block: dict[str, Any], ttl: str | None = None) -> dict[str, Any]:
    return {
        **block,
        "cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl is not None else {}),
    }


def broken_rules(made: Request, profile: Profile = PROFILE) -> list[str]:
    return [violation.rule for violation in check_request(made, profile)]


def places(made: Request, profile: Profile = PROFILE) -> list[tuple[str, str]]:
    return [(violation.rule, violation.where) for violation in check_request(made, profile)]


def fault(made: Request, profile: Profile = PROFILE) -> str:
    (violation,) = check_request(made, profile)
    return violation.text


class Broken(NamedTuple):
    """A request, and where it breaks which rules: ``V1 messages[0]``."""

    request: Request
    places: tuple[str, ...]
    fault: str
    profile: Profile

    def check(self) -> None:
        violations = check_request(self.request, self.profile)
        assert tuple(f"{each.rule} {each.where}" for each in violations) == self.places
        assert not self.fault or all(self.fault in each.text for each in violations)


def broken(made: Request, *places: str, fault: str = "", profile: Profile = PROFILE) -> Broken:
    return Broken(made, places, fault, profile)


LOOP: tuple[Said, ...] = (
    user("look"),
    assistant("I look.", call_block("c1"), call_block("c2")),
    user(result_block("c1", "one"), result_block("c2", [text("two"), image()]), "and now?"),
)


def history(*said: Said) -> list[Message]:
    built = Talk()
    for role, blocks in said:
        built.add(role, list(blocks))  # type: ignore[arg-type]  # of two types
    return built.messages


def thinking_steps(count: int) -> list[Said]:
    said = [user("go")]
    for number in range(count):
        said.append(assistant(thought(f"t{number}"), call_block(f"c{number}")))
        said.append(user(result_block(f"c{number}", "x")))
    return said


def without_thinking(said: Sequence[Said], *places: int) -> list[Said]:
    return [
        (role, [block for block in blocks if at not in places or block["type"] != "thinking"])
        for at, (role, blocks) in enumerate(said)
    ]


def violations(
    sent: Sequence[Said], made: Sequence[Said], thinking_from: int = 0, edited: int | None = None
) -> list[tuple[str, str]]:
    found = check_against_history(request(*sent), history(*made), thinking_from, edited)
    return [(violation.rule, violation.where) for violation in found]
