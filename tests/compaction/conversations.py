"""Small conversations for the tests of this folder, and generators of random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from llmsession.compaction.view.plan import Plan
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id
from llmsession.turns.request import Frame, Request

FRAME = Frame(model="m", max_tokens=1000, system="be brief")

Blocks = str | list[dict[str, Any]]

T = TypeVar("T")


def required(value: T | None) -> T:
    """*value*; the test fails if it is None."""
    assert value is not None
    return value


class Talk:
    """Builds a history message by message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.turn = 0
        self.calls = 0

    def add(self, role: Role, content: Blocks) -> Talk:
        owner: Any = "u" if role == "user" else "a"
        identity = message_id("s", TurnId(owner, max(self.turn, 1)), len(self.messages))
        message = Message(
            id=identity, session="s", turn=max(self.turn, 1), role=role, body=encode_blocks(content)
        )
        self.messages.append(message)
        return self

    def ask(self, text: str = "go on") -> Talk:
        """The next turn starts."""
        self.turn += 1
        return self.add("user", text)

    def step(
        self,
        *outputs: Any,
        thinking: str | None = None,
        is_error: bool = False,
        word: str | None = None,
        times: int = 1,
    ) -> Talk:
        """Calls, and the outputs that answer them, so many *times*, with a *word* of the user's
        behind them. Ids are c1, c2, ..."""
        for _ in range(times):
            ids = [f"c{self.calls + number}" for number in range(1, len(outputs) + 1)]
            self.calls += len(outputs)
            thoughts = [] if thinking is None else [thinking_block(thinking)]
            self.add("assistant", [*thoughts, *map(call_block, ids)])
            pairs = zip(ids, outputs, strict=True)
            results = [result_block(*pair, is_error=is_error) for pair in pairs]
            self.add("user", results if word is None else [*results, text(word)])
        return self

    def call(self, name: str, output: Any, *, is_error: bool = False, **arguments: Any) -> Talk:
        """A step with one call of the tool *name*."""
        self.calls += 1
        call = {**call_block(f"c{self.calls}", **arguments), "name": name}
        self.add("assistant", [call])
        return self.add("user", [result_block(f"c{self.calls}", output, is_error=is_error)])

    def reply(self, text: str = "done") -> Talk:
        return self.add("assistant", text)

    def turns(self, count: int, *outputs: Any) -> Talk:
        """So many turns, each with a step if there are *outputs*."""
        for _ in range(count):
            self.ask().step(*outputs, times=bool(outputs)).reply()
        return self


def message_of(role: Role, content: Blocks) -> Message:
    return Talk().add(role, content).messages[0]


def a_plan(**fields: Any) -> Plan:
    """A plan that changes and frees nothing but what *fields* say."""
    sizes = {"tokens_before": 0, "tokens_after": 0}
    return Plan(**{"policy": "p", "compacted_before": 0, "reason": "because", **sizes, **fields})


def talk(turns: int, output: str = "x" * 1000) -> Talk:
    """A history of turns with one step each."""
    return Talk().turns(turns, output)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image() -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 40_000}
    return {"type": "image", "source": source}


def thinking_block(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": "sig"}


def call_block(call_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "bash", "input": arguments}


def result_block(call_id: str, content: Any, *, is_error: bool = False) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    return {**block, "is_error": True} if is_error else block


def sent(request: Request) -> list[list[dict[str, Any]]]:
    """The decoded blocks of each message of a request."""
    return [msgspec.json.decode(message.body) for message in request.messages]


def shape(messages: Any) -> list[tuple[Any, ...]]:
    """Calls and results, in order: all that a swap must not change."""
    return [
        (block["type"], block.get("id"), block.get("tool_use_id"), block.get("is_error"))
        for message in messages
        for block in msgspec.json.decode(message.body)
        if block["type"] in ("tool_use", "tool_result")
    ]


_outputs = st.one_of(
    st.sampled_from(["", " ", "short", "x" * 2000, "line\n" * 300]),
    st.lists(st.sampled_from([text("hello"), text(" "), text("y" * 1500), image()]), max_size=3),
)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """Random valid histories: turns of steps with parallel calls, thinking, odd texts."""
    built = Talk()
    for _ in range(draw(st.integers(1, 8))):
        built.ask(draw(st.sampled_from(["go", " ", "look at this"])))
        for _ in range(draw(st.integers(0, 3))):
            built.step(
                *draw(st.lists(_outputs, min_size=1, max_size=3)),
                thinking=draw(st.sampled_from([None, "", "hm"])),
                is_error=draw(st.booleans()),
            )
        if draw(st.booleans()):
            built.reply(draw(st.sampled_from(["done", " ", "see above"])))
    return built


def summaries_of(built: Talk, summary: str = "what it said") -> Mapping[str, str]:
    return {f"c{number}": summary for number in range(1, built.calls + 1)}
