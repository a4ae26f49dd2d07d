"""``make live`` before it costs anything: it asks first, and talks to whom it is told to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.live import smoke
from llmsession import AnthropicProvider
from llmsession.testing import StrictServer, call, say

FIRST = AnthropicProvider(api_key="unused")  # imports the SDK, before there is an event loop
LIVE = Path(__file__).parents[1] / "examples" / "live.py"


def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        [sys.executable, str(LIVE), *arguments],
        input=answer, capture_output=True, text=True, env=bare, timeout=150, check=False,
    )  # fmt: skip


def test_without_a_key_it_says_so_in_one_line() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stderr.startswith("live: no key: set ANTHROPIC_API_KEY or OPENAI_API_KEY; ")
    assert done.stderr.count("\n") == 1


def test_an_end_of_the_input_is_a_no() -> None:
    done = run("--provider", "anthropic", "--base-url", "http://127.0.0.1:9", answer="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("nothing was sent\n")


def test_it_names_its_highest_cost_and_sends_nothing_without_a_yes() -> None:
    done = run("--provider", "anthropic", "--base-url", "http://127.0.0.1:9", answer="\n")
    assert done.returncode == 0
    assert "at most 5 requests and $0.0" in done.stdout
    assert done.stdout.endswith("nothing was sent\n")


@pytest.mark.real_time  # the clock of the tests does not see bytes that the kernel still has
async def test_what_it_does_works_against_a_strict_server() -> None:
    script = [
        call("add", {"a": 17, "b": 25}, id="toolu_1"),
        say("42"),
        say("one two three four " * 50),
        say("Bye"),
    ]
    async with StrictServer(script=script) as server:
        await smoke(AnthropicProvider(base_url=server.url, api_key="test"), "claude-haiku-4-5")
        assert [request.refusal for request in server.requests] == [None] * 4
        assert server.open_connections == 0
