"""The strict server as the peers' model: ``python -m benchmarks.peers.model_server LOG``.

It says its URL in one line and serves until its input closes; then it writes what it was sent to
LOG, a line of JSON for each request.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from llmsession.testing import ModelRules, StrictServer

from .markers import reply_to

__all__ = ["MODELS", "SMALL_WINDOW_TOKENS", "Asked", "main", "read_log"]

SMALL_WINDOW_TOKENS = 16_000
MODELS = {
    "small-window": ModelRules(
        context_tokens=SMALL_WINDOW_TOKENS,
        max_output_tokens=4_000,
        adaptive_thinking=True,
        system_messages=True,
        window_holds_output=True,
    ),
}
"""Beside ``test-model``, whose window is 128,000 tokens."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request: when it had arrived, on the clock that all processes of a machine share; what
    it said, and what became of it. ``status`` 0: the client went away."""

    number: int
    at_s: float
    path: str
    status: int
    refusal: str | None
    ended: str
    messages: list[Any]
    prompt_tokens: int
    cached_tokens: int


def read_log(path: Path) -> list[Asked]:
    """What the server wrote down, in the order that it came."""
    return [msgspec.json.decode(line, type=Asked) for line in path.read_bytes().splitlines()]


def main(log: str) -> int:
    anyio.run(_serve, Path(log))
    return 0


async def _serve(log: Path) -> None:
    arrived: list[float] = []

    def clock() -> float:
        arrived.append(time.monotonic())
        return arrived[-1]

    async with StrictServer(reply_to, clock=clock, models=MODELS) as server:
        os.write(1, f"{server.url}\n".encode())
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        with log.open("wb") as file:
            for at_s, received in zip(arrived, server.requests, strict=True):
                refusal = received.refusal
                asked = Asked(
                    number=received.number,
                    at_s=at_s,
                    path=received.path,
                    status=refusal.status if refusal else 200,
                    refusal=refusal.message if refusal else None,
                    ended=received.ended,
                    messages=received.messages,
                    prompt_tokens=received.cost.prompt.whole if received.cost else 0,
                    cached_tokens=received.cost.prompt.read if received.cost else 0,
                )
                file.write(msgspec.json.encode(asked) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
