"""The examples do what they say: each is run, offline."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from examples.web_sse import application
from llmsession import MemoryStore
from llmsession.testing.scripted import ScriptedProvider, say

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(example: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / example],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_agent_loop_runs_tools_until_the_model_is_done(tmp_path: Path) -> None:
    lines = run("agent_loop.py", tmp_path).splitlines()
    assert "I look." in lines
    assert "  count({'fruit': 'apples'}) = 3" in lines
    assert any(line.startswith("  count({'fruit': 'figs'}) failed: ") for line in lines)
    assert lines[-2] == "There are 3 apples, and figs are not in the list."
    assert lines[-1].startswith("1 turn, 4 messages")
    assert (tmp_path / "agent_loop.db").exists()


def test_under_trio_one_conversation_goes_on_while_another_is_interrupted(tmp_path: Path) -> None:
    assert run("with_trio.py", tmp_path).splitlines() == [
        "'hello?': 'Hello from trio.'",
        "'talk for ever': interrupt",
        "0 messages are left of what was interrupted",
    ]


def test_memories_and_attached_files_are_in_the_request_and_not_in_the_history(
    tmp_path: Path,
) -> None:
    lines = run("attach_context.py", tmp_path).splitlines()
    assert lines[:4] == [
        "<memory_context>", "[User Memory]", "- The user works in Lisbon.", "</memory_context>",
    ]  # fmt: skip
    attached = [line for line in lines if "<context_items>" in line]
    assert ["return a + b" in line for line in attached] == [True, False]
    assert lines[-1] == "4 messages in the history"


# The web application, spoken to as a server does, so that its streams are really streamed.


class Browser:
    """Requests to one application, and the events that it streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def _ask(
        self, method: str, path: str, send: Any, *, gone: Any, body: bytes = b"", last: str = ""
    ) -> None:
        told = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if told:
                return told.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        headers = [(b"last-event-id", last.encode())] if last else []
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1", "method": method, "scheme": "http", "path": path,
            "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": headers,
        }  # fmt: skip
        await self._app(scope, receive, send)

    async def ask(self, method: str, path: str, said: Any = None) -> tuple[int, str]:
        """The status and the body."""
        answer: dict[str, Any] = {"body": b""}

        async def send(message: Message) -> None:
            answer["status"] = message.get("status", answer.get("status"))
            answer["body"] += message.get("body", b"")

        body = b"" if said is None else json.dumps(said).encode()
        await self._ask(method, path, send, gone=asyncio.Event(), body=body)
        return answer["status"], answer["body"].decode()

    @asynccontextmanager
    async def events(
        self, path: str, last: str = ""
    ) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
        """The events of a stream, until the page is closed."""
        pieces: asyncio.Queue[str] = asyncio.Queue()

        async def send(message: Message) -> None:
            pieces.put_nowait(message.get("body", b"").decode())
            if message.get("status", 200) != 200:
                pieces.put_nowait("event: refused\n\n")

        async def read() -> AsyncIterator[dict[str, str]]:
            text = ""
            while True:
                text += await pieces.get()
                while "\n\n" in text:
                    event, _, text = text.partition("\n\n")
                    yield dict(line.split(": ", 1) for line in event.splitlines())

        gone = asyncio.Event()
        asking = asyncio.ensure_future(self._ask("GET", path, send, gone=gone, last=last))
        try:
            yield read()
        finally:
            gone.set()
            await asking


@asynccontextmanager
async def opened(provider: ScriptedProvider) -> AsyncIterator[Browser]:
    app = application(provider, MemoryStore())
    async with asyncio.timeout(100), app.router.lifespan_context(app):
        yield Browser(app)


async def until(events: AsyncIterator[dict[str, str]], kind: str) -> list[dict[str, str]]:
    """The events up to the first of *kind*."""
    seen = []
    async for event in events:
        seen.append(event)
        if event["event"] == kind:
            break
    return seen


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {}


pytestmark = pytest.mark.real_time


async def test_a_browser_is_streamed_what_is_said_as_it_is_said() -> None:
    provider = ScriptedProvider([say("one two three").slow(0.01, delta_chars=4)])
    async with opened(provider) as browser, browser.events("/sessions/s/events") as events:
        assert (await until(events, "session.created"))[0]["id"] == "1"
        asked = {"text": "hello", "command_id": "c1"}
        assert await browser.ask("POST", "/sessions/s/turns", asked) == (202, '{"turn":1}')
        # A repeat, as a page sends after a lost connection, does nothing.
        assert await browser.ask("POST", "/sessions/s/turns", asked) == (202, '{"turn":1}')
        seen = await until(events, "turn.committed")
        texts = [json.loads(event["data"])["text"] for event in seen if event["event"] == "text"]
        assert "".join(texts) == "one two three"
        assert len(texts) > 1
    assert len(provider.requests) == 1


async def test_a_browser_that_comes_back_misses_nothing_and_sees_nothing_twice() -> None:
    async with opened(ScriptedProvider(["first", "second"])) as browser:
        async with browser.events("/sessions/s/events") as events:
            await until(events, "session.created")
            await browser.ask("POST", "/sessions/s/turns", {"text": "a"})
            last = (await until(events, "turn.committed"))[-1]["id"]
        await browser.ask("POST", "/sessions/s/turns", {"text": "b"})
        async with browser.events("/sessions/s/events", last) as events:
            seen = await until(events, "turn.committed")
        turns = [json.loads(event["data"])["turn"] for event in seen]
        assert set(turns) == {2}
        assert seen[0]["event"] == "turn.accepted"


async def test_closing_the_page_interrupts_nothing_and_the_button_does() -> None:
    provider = ScriptedProvider([say("half").hanging(3)])
    async with opened(provider) as browser:
        async with browser.events("/sessions/s/events") as events:
            await until(events, "session.created")
            await browser.ask("POST", "/sessions/s/turns", {"text": "a"})
            await until(events, "text")
        assert provider.open_streams == 1
        async with browser.events("/sessions/s/events") as events:
            assert await browser.ask("POST", "/sessions/s/interrupt") == (
                200,
                '{"result":"aborted"}',
            )
            await until(events, "turn.aborted")
        assert provider.open_streams == 0


async def test_what_cannot_be_done_is_told_as_http_does() -> None:
    async with opened(ScriptedProvider([])) as browser:
        status, body = await browser.ask("POST", "/sessions/s/turns", {"text": ""})
        assert status == 400
        assert json.loads(body)["error"] == "InvalidMessage"
        status, page = await browser.ask("GET", "/")
        assert status == 200
        assert "EventSource" in page


# Clients of a service.


def test_the_grpc_client_talks_by_the_generated_stubs_alone(tmp_path: Path) -> None:
    assert run("grpc_client.py", tmp_path).splitlines() == [
        "turn 1 was accepted",
        "turn.accepted, record 2",
        "turn.committed, record 3",
        "it said: Hello over gRPC.",
        "2 messages",
        "NOT_FOUND: SessionNotFound",
    ]


def test_the_socket_client_resumes_after_its_cursor(tmp_path: Path) -> None:
    assert run("socket_client.py", tmp_path).splitlines() == [
        "Hello over a socket.",
        "turn 2 was committed, record 5",
        "u1: hello?",
        "a1: Hello over a socket.",
        "u2: again?",
        "a2: And again.",
    ]
