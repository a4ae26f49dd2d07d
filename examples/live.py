"""A smoke test against a real model, with your key. It names the highest cost, and asks first.

    make live     # ANTHROPIC_API_KEY or OPENAI_API_KEY; another server: ARGS="--base-url URL"

It makes a tool call, interrupts a reply in the middle, and sends again. Nothing is stored.
"""

from __future__ import annotations

import argparse
import os
import sys

import anyio

from llmsession import (
    AnthropicProvider,
    OpenAIProvider,
    SessionConfig,
    SessionManager,
    TextDelta,
    tool,
)
from llmsession.errors import SessionError
from llmsession.providers import Provider

REQUESTS = 5
MAX_INPUT_TOKENS = 1_500
"""An upper bound for each request. The requests below are far smaller."""
MAX_OUTPUT_TOKENS = 256
NO_KEY = (
    "live: no key: set ANTHROPIC_API_KEY or OPENAI_API_KEY; for a server that needs no key:"
    ' make live ARGS="--provider openai --base-url URL --model NAME"'
)
# Model name, and its list prices in November 2026: dollars per million input and output tokens.
CHEAP = {"anthropic": ("claude-haiku-4-5", 1.0, 5.0), "openai": ("gpt-4o-mini", 0.15, 0.6)}


@tool
def add(a: int, b: int) -> str:
    """Adds two integers."""
    return str(a + b)


async def smoke(provider: Provider, model: str) -> None:
    """Make a few requests, and print the results."""
    config = SessionConfig(model=model, max_tokens=MAX_OUTPUT_TOKENS, tools=[add])
    async with SessionManager(provider=provider) as manager:
        session = await manager.create(config)
        turn = await session.send("Use the tool to add 17 and 25. Answer with the number alone.")
        print(f"a tool:      {(await turn.text()).strip()}")
        turn = await session.send("Count from one to a hundred in words.")
        said = 0
        async for event in turn:
            if isinstance(event, TextDelta):
                said += len(event.text)
                if said > 40:
                    await session.interrupt(turn.id)
                    break
        outcome = await turn.outcome()
        print(f"interrupted: after {said} characters; {outcome.status}, {outcome.stop_reason}")
        turn = await session.send("Say good bye in one word.")
        print(f"after it:    {(await turn.text()).strip()}")
        total = session.usage().total
        print(f"tokens:      {total.prompt_tokens:,} in, {total.output_tokens:,} out")


def agreed() -> bool:
    """Ask whether to continue. No answer means no."""
    try:
        return input("go on? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def main() -> int:
    """Choose the provider by its key, print the highest cost, ask, and run the test."""
    parser = argparse.ArgumentParser(description="A smoke test against a real model.")
    parser.add_argument("--provider", choices=sorted(CHEAP))
    parser.add_argument("--model")
    parser.add_argument("--base-url")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    given = parser.parse_args()
    keys = {name: os.environ.get(f"{name.upper()}_API_KEY") for name in CHEAP}
    name = given.provider or next((name for name in CHEAP if keys[name]), None)
    if name is None or not (keys[name] or given.base_url):
        print(NO_KEY, file=sys.stderr)
        return 2
    model, dollars_in, dollars_out = CHEAP[name]
    cost = REQUESTS * (MAX_INPUT_TOKENS * dollars_in + MAX_OUTPUT_TOKENS * dollars_out) / 1e6
    if given.model:
        print(f"{given.model} at {name}: at most {REQUESTS} requests, each {MAX_INPUT_TOKENS:,}"
              f" tokens in and {MAX_OUTPUT_TOKENS} out; you know its price")  # fmt: skip
    else:
        print(f"{model} at {name}: at most {REQUESTS} requests and ${cost:.3f}, at the list price")
    if not given.yes and not agreed():
        print("nothing was sent")
        return 0
    kind = AnthropicProvider if name == "anthropic" else OpenAIProvider
    try:
        anyio.run(smoke, kind(base_url=given.base_url), given.model or model)
    except SessionError as error:
        print(f"live: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
