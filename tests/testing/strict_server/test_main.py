"""The strict server as a process of its own, in real time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

COMMAND = [sys.executable, "-W", "error", "-m", "llmsession.testing.strict_server"]


@contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server and its URL; it is killed if it does not stop by itself."""
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().strip()
        finally:
            if server.poll() is None:
                server.kill()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_url_plays_its_script_and_stops_at_a_signal(
    tmp_path: Path, sign: signal.Signals
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["hello", {"content": "slow", "delay_s": 0.01}]), "utf-8")
    with served("--script", str(script)) as (server, url):
        assert url.startswith("http://127.0.0.1:")
        with anthropic.Anthropic(base_url=url, api_key="test-key", max_retries=0) as client:
            for said in ("hello", "slow"):
                with client.messages.stream(
                    model="test-model", max_tokens=10, messages=[{"role": "user", "content": "a"}]
                ) as stream:
                    assert stream.get_final_text() == said
        server.send_signal(sign)
        assert server.wait(timeout=100) == 0
        assert server.stdout is not None
        assert server.stdout.read() == ""


def test_faults_come_with_the_rate_that_was_asked_for() -> None:
    ask: Any = {"model": "test-model", "max_tokens": 10}
    with (
        served("--fault-rate", "1", "--seed", "3") as (_, url),
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0, timeout=60) as client,
        pytest.raises(anthropic.AnthropicError),
    ):
        for _ in range(5):
            client.messages.create(**ask, messages=[{"role": "user", "content": "a"}])


def test_a_script_that_cannot_be_read_ends_it_with_one_line(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.json")
    ended = subprocess.run(
        [*COMMAND, "--script", absent], capture_output=True, text=True, timeout=150, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"{absent} is not a script: ")
    assert ended.stderr.count("\n") == 1
