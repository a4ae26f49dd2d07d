"""The model of a soak, as a process of its own: ``python -m benchmarks.soak.model PORT SEED``.

The strict server over HTTP: what it is asked it judges, and some of its answers it spoils. It says
its URL in one line, and at SIGTERM in another one what it was asked, as JSON.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from random import Random
from typing import Any

import anyio
import msgspec

from llmsession.testing import (
    RandomFaults,
    Received,
    ScriptedReply,
    StrictServer,
    WireFault,
    call,
    say,
    think,
)
from llmsession.testing.workload.tools import words

__all__ = ["FAULTS", "Asked", "reply_to"]

FAULTS = (
    WireFault.rate_limited(0.2),
    WireFault.overloaded(),
    WireFault.server_error(),
    WireFault.stall(1.0),
    WireFault.cut(),
    WireFault.reset(),
    WireFault.error_event(after_events=3),
    WireFault.pings(),
)
FAULT_RATE = 0.06
KEPT = 20
MAX_STEPS = 10
MAX_TOLD = 5


class Asked(msgspec.Struct, frozen=True):
    """What a model server was sent. ``refused`` requests broke a rule, ``broken`` says which."""

    requests: int = 0
    refused: int = 0
    spoiled: int = 0
    closed_by_client: int = 0
    broken: tuple[str, ...] = ()


def reply_to(seed: int, received: Received) -> ScriptedReply:
    """What the model says; equal requests get equal replies, but for the ids of calls."""
    messages = received.messages
    random = Random(f"{seed}/{received.body.get('system')}/{len(messages)}/{received.number}")
    reply = ScriptedReply()
    if random.random() < 0.2:
        reply += think(words(random, 80))
    if random.random() < 0.8:
        reply += say(words(random, random.choice((20, 80, 400, 900))))
    tools = [tool["name"] for tool in received.body.get("tools", ()) if "name" in tool]
    wanted = [name for name in tools if name != "recall"]
    if wanted and random.random() < 0.5 and _steps(messages) < MAX_STEPS:
        for at in range(random.choice((1, 1, 2, 3))):
            name = random.choice(wanted)
            # Ids that come again: the session has to make them unique.
            reply += call(name, {"seed": random.randrange(1 << 30)}, id=f"call_{at}")
    else:
        stop = random.choice(("end_turn",) * 20 + ("max_tokens", "refusal"))
        reply = (reply + say("so far")).stopping(stop)
    delay_s = random.choice((0.0, 0.0, 0.001, 0.004))
    return reply.slow(delay_s, delta_chars=random.choice((24, 80, 200)))


def _steps(messages: list[Any]) -> int:
    """How many of the assistant's messages came since somebody said something."""
    steps = 0
    for message in reversed(messages):
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text"}]
        if message.get("role") == "user":
            if any(block.get("type") == "text" for block in blocks):
                return steps
        else:
            steps += 1
    return steps


async def _serve(port: int, seed: int) -> None:
    faults = RandomFaults(seed=seed, rate=FAULT_RATE, kinds=FAULTS)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with StrictServer(
            lambda received: reply_to(seed, received),
            faults=faults, port=port, seed=seed, keep=KEPT,
        ) as server:  # fmt: skip
            os.write(1, f"{server.url}\n".encode())
            async for _ in signals:
                break
            broken = Counter(
                f"{each.refusal.status} {each.refusal.message}"[:300]
                for each in server.requests
                if each.refusal is not None and not each.valid
            )
            told = Asked(
                requests=len(server.requests),
                refused=broken.total(),
                spoiled=sum(each.fault is not None for each in server.requests),
                closed_by_client=server.closed_by_client,
                broken=tuple(f"{n} x {text}" for text, n in broken.most_common(MAX_TOLD)),
            )
    os.write(1, msgspec.json.encode(told) + b"\n")


if __name__ == "__main__":
    anyio.run(_serve, int(sys.argv[1]), int(sys.argv[2]))
