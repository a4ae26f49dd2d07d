"""The prompt cache counts by prefix, as the real ones do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmsession.testing.strict_server.model.prompt_cache import (
    CacheLedger,
    Part,
    completion_parts,
    message_parts,
    prompt_tokens,
)
from llmsession.testing.strict_server.model.usage import PromptCost
from tests.testing.strict_server.requests import LS, accepted, assistant, body, chat, user

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(tokens: int, letter: str = "a", control: dict[str, Any] | None = None) -> dict[str, Any]:
    """A text block of so many tokens, its own included."""
    block = {"type": "text", "text": letter * (4 * (tokens - 3))}
    return {**block, "cache_control": control} if control else block


class Server:
    """One cache, at one time."""

    def __init__(self, min_tokens: int = 100) -> None:
        self.ledger = CacheLedger()
        self.now_s = 0.0
        self.min_tokens = min_tokens

    def cost(self, *messages: Any, **fields: Any) -> PromptCost:
        parts = message_parts(accepted(body(*messages, **fields)))
        cost = self.ledger.charge_message(parts, min_tokens=self.min_tokens, now_s=self.now_s)
        assert cost.whole == prompt_tokens(parts)
        return cost


def test_without_breakpoints_nothing_is_cached() -> None:
    server = Server()
    for _ in range(2):
        assert server.cost(user(text(500))) == PromptCost(new=504)


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    server = Server()
    marked = user(text(500, control=MARK), text(50, "b"))
    assert server.cost(marked) == PromptCost(new=50, written_5m=504)
    assert server.cost(marked) == PromptCost(new=50, read=504)
    changed = user(text(500, control=MARK), text(60, "c"))
    assert server.cost(changed) == PromptCost(new=60, read=504)


def test_a_change_before_the_breakpoint_loses_the_prefix() -> None:
    server = Server()
    server.cost(user(text(500, control=MARK)))
    assert server.cost(user(text(500, "b", MARK))).read == 0


def test_the_next_turn_reads_what_the_last_one_wrote_and_writes_the_rest() -> None:
    server = Server()
    first = [user(text(500, control=MARK))]
    server.cost(*first)
    longer = [user(text(500)), assistant(text(100, "b")), user(text(50, "c", MARK))]
    assert server.cost(*longer) == PromptCost(read=504, written_5m=158)


def test_a_prefix_below_the_models_least_length_is_not_cached() -> None:
    server = Server(min_tokens=505)
    for _ in range(2):
        assert server.cost(user(text(500, control=MARK))) == PromptCost(new=504)
    assert server.cost(user(text(501, control=MARK))).written_5m == 505


def test_what_is_not_read_for_five_minutes_is_forgotten() -> None:
    server = Server()
    marked = user(text(500, control=MARK))
    server.cost(marked)
    for _ in range(5):
        server.now_s += 299
        assert server.cost(marked).read == 504
    server.now_s += 300
    assert server.cost(marked) == PromptCost(written_5m=504)


def test_an_hour_is_kept_for_an_hour_and_counted_apart() -> None:
    server = Server()
    system = [text(300, control=HOUR)]
    marked = user(text(200, control=MARK))
    assert server.cost(marked, system=system) == PromptCost(written_1h=300, written_5m=204)
    server.now_s += 3599
    assert server.cost(marked, system=system) == PromptCost(read=300, written_5m=204)


def test_a_breakpoint_looks_back_20_blocks_and_no_further() -> None:
    server = Server()
    server.cost(user(text(500, control=MARK)))
    near = [text(10, "b") for _ in range(19)]
    assert server.cost(user(text(500), *near, text(10, "c", MARK))).read == 504
    far = [text(10, "d") for _ in range(20)]
    assert server.cost(user(text(500), *far, text(10, "e", MARK))).read == 0


def test_tools_come_first_then_system_then_messages() -> None:
    server = Server(min_tokens=1)
    tools = [{**LS, "cache_control": MARK}]
    system = [text(300, control=MARK)]
    server.cost(user("hi"), tools=tools, system=system)
    other = server.cost(user("hi"), tools=tools, system=[text(300, "b", MARK)])
    assert 0 < other.read < 300
    assert server.cost(user("hi"), tools=[LS], system=system).read == other.read + 300
    longer = [{**LS, "description": "lists"}]
    assert server.cost(user("hi"), tools=longer, system=system).read == 0


def test_a_change_of_tool_choice_or_thinking_costs_the_messages_alone() -> None:
    server = Server()
    request: dict[str, Any] = {"system": [text(300, control=MARK)], "tools": [LS]}
    marked = user(text(200, control=MARK))
    whole = server.cost(marked, **request).written_5m
    for change in ({"tool_choice": {"type": "any"}}, {"thinking": {"type": "adaptive"}}):
        assert server.cost(marked, **request, **change).read == whole - 204


def test_automatic_caching_marks_the_last_block() -> None:
    server = Server()
    plain = user(text(300), text(200, "b"))
    assert server.cost(plain, cache_control=MARK).written_5m == 504
    assert server.cost(plain, cache_control=MARK).read == 504


def test_another_model_has_another_cache() -> None:
    server = Server()
    marked = user(text(500, control=MARK))
    server.cost(marked)
    assert server.cost(marked, model="claude-opus-5").read == 0
    assert server.cost(marked, model="test-model-2").read == 504


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.lists(st.sampled_from([None, "5m", "1h"]), min_size=1, max_size=30),
            st.integers(0, 2000),
        ),
        max_size=8,
    )
)
def test_a_cost_is_always_the_whole_prompt_and_a_repeat_reads_at_least_as_much(
    requests: list[tuple[int, list[str | None], int]],
) -> None:
    ledger, now_s = CacheLedger(), 0.0
    for prefix, marks, wait_s in requests:
        now_s += wait_s
        names = [bytes([prefix if at < 3 else 9, at]) for at in range(len(marks))]
        parts = [Part(name, 100 * (at + 1), marks[at]) for at, name in enumerate(names)]
        first = ledger.charge_message(parts, min_tokens=200, now_s=now_s)
        again = ledger.charge_message(parts, min_tokens=200, now_s=now_s)
        assert first.whole == again.whole == prompt_tokens(parts)
        assert again.read >= first.read
        assert again.read == first.read + first.written_5m + first.written_1h


def test_a_chat_is_cached_by_itself_from_1024_tokens_on_in_steps_of_128() -> None:
    ledger = CacheLedger()

    def cost(*contents: str, now_s: float = 0.0) -> PromptCost:
        messages = [{"role": "user", "content": content} for content in contents]
        return ledger.charge_completion(completion_parts(chat(*messages)), now_s=now_s)

    long, short = "a" * 4400, "b" * 400
    assert cost(long, "x") == PromptCost(new=1115)
    assert cost(long, "y") == PromptCost(new=91, read=1024)
    assert cost(short, "x").read == cost(short, "x").read == 0
    assert cost(long, "y", now_s=300.0).read == 0
