"""Building the next request of a long conversation, beside encoding its messages as JSON once.

Ours: one more message is there; the request is projected, sized and checked. Bare: the message
list of that request, encoded. A step cannot cost less than that: the provider's client does it.
CPU time, so that others on the machine count little.
"""

from __future__ import annotations

import time

import msgspec

from benchmarks.recorded import recorded_message
from benchmarks.report import Row
from llmsession import SessionConfig, Tool
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import ContextBuilder
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile

__all__ = ["conversation", "run"]

BOUNDS = {200: 5.0, 2_000: 3.0}
"""Most times the bare cost, by messages: what grows with them has to stay near the bare cost."""
ROUNDS = 7
STEPS = 100
RESULT = "a line of a tool's result\n" * 40
THOUGHT = "so the next file is the one to read, " * 10


def conversation(length: int) -> list[Message]:
    """A tool loop of *length* messages, with signed thinking, that ends with a result."""
    messages = [recorded_message(0, "user", "go")]
    for at in range(1, length // 2 + 1):
        thinking = {"type": "thinking", "thinking": THOUGHT, "signature": f"s{at}"}
        call = {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {"path": f"/{at}"}}
        result = {"type": "tool_result", "tool_use_id": f"c{at}", "content": RESULT}
        messages.append(recorded_message(at, "assistant", [thinking, call]))
        messages.append(recorded_message(at, "user", [result]))
    return messages


def _pair(length: int) -> tuple[float, float]:
    """Seconds of one build at *length* messages and of encoding its messages."""
    messages = conversation(length + 2 * STEPS)
    config = SessionConfig(model="m", tools=(Tool(name="read"),)).checked()
    builder, view = ContextBuilder(Profile(), config.frame()), View()
    builder.build(tuple(messages[: length + 1]), view)
    ours = bare = 0.0
    for step in range(1, STEPS + 1):
        said = tuple(messages[: length + 1 + 2 * step])
        started = time.process_time()
        built = builder.build(said, view)
        ours += time.process_time() - started
        assert not built.violations
        started = time.process_time()
        msgspec.json.encode(built.request.messages)
        bare += time.process_time() - started
    return ours / STEPS, bare / STEPS


def run() -> list[Row]:
    rows = []
    for length, bound in BOUNDS.items():
        pairs = sorted((_pair(length) for _ in range(ROUNDS)), key=lambda pair: pair[0] / pair[1])
        ours, bare = pairs[len(pairs) // 2]
        rows.append(
            Row(
                name=f"the next request at {length:,} messages",
                ours=ours * 1e6,
                bare=bare * 1e6,
                unit="us",
                ratios=tuple(a / b for a, b in pairs),
                bound=bound,
            )
        )
    return rows
