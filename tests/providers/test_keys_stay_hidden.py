"""Everything that a run writes is searched for the key: logs of ours and of the SDKs at their
most talkative, records, events, errors with their whole chain of causes."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import msgspec
import openai
import pytest
import structlog

from llmsession import (
    LLMSession,
    OpenAIProvider,
    ProviderError,
    Request,
    StepTag,
    Tool,
    TurnFailed,
    TurnLimits,
)
from llmsession.testing import WireFault, call, say, think
from tests.providers.over_http import APIS, KEYS, Api, on_line
from tests.session.actors import Quick

pytestmark = pytest.mark.real_time
SECRET = "the content of a diary"


class Everything(logging.Handler):
    """What any logger of the process says, with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))
        self.texts.append(repr(record.args))


@pytest.fixture
def logged() -> Iterator[Everything]:
    found, root = Everything(), logging.getLogger()
    level = root.level
    root.addHandler(found)
    root.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        root.removeHandler(found)
        root.setLevel(level)


@pytest.mark.parametrize("api", APIS)
async def test_nothing_that_a_run_writes_shows_the_key(api: Api, logged: Everything) -> None:
    own: list[Any] = []

    def keep(_logger: Any, _name: str, event: Any) -> Any:
        own.append(dict(event))
        raise structlog.DropEvent

    key = KEYS[api]
    faults = [None, None, WireFault.overloaded(), WireFault.cut(500), WireFault.server_error(400)]
    script = [think("hm") + call("t", {"a": 1}, id="c"), "done", "hello", "hello", "hello"]
    seen: list[Any] = []

    async def watch(session: LLMSession) -> None:
        async for event in session.subscribe(after=0):
            seen.append(event)

    async with on_line(
        api,
        script,
        faults=faults,
        logger=structlog.wrap_logger(None, processors=[keep]),
        provider_options={"max_retries": 1},
        tools=[Tool(name="t", run=Quick())],
        limits=TurnLimits(max_retries=0),
    ) as line:
        async with anyio.create_task_group() as group:
            group.start_soon(watch, line.session)
            errors = []
            for _ in range(4):
                turn = await line.session.send(SECRET)
                try:
                    await turn.text()
                except TurnFailed as error:
                    errors.append("".join(traceback.format_exception(error)) + repr(vars(error)))
            group.cancel_scope.cancel()
        records = [bytes(record.body).decode() for record in await line.store.read("s")]
        told = [repr(line.session.status()), repr(line.session.config), repr(line.provider)]
    assert errors
    assert seen
    assert own
    assert logged.texts
    written = {
        "logs": logged.texts,
        "our logs": [repr(own)],
        "records": records,
        "events": [msgspec.json.encode(event).decode() for event in seen] + [repr(seen)],
        "errors": errors,
        "values": told,
    }
    for what, texts in written.items():
        assert not [text for text in texts if key in text], what
    for what in ("our logs", "errors"):
        assert not [text for text in written[what] if SECRET in text], what


async def test_a_server_that_quotes_the_key_does_not_get_it_into_an_error_or_its_causes() -> None:
    key = KEYS["openai"]

    def quote(request: httpx2.Request) -> httpx2.Response:
        said = f"Incorrect API key provided: {request.headers['authorization']}."
        return httpx2.Response(401, json={"error": {"message": said, "type": "invalid_request"}})

    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(quote))
    async with openai.AsyncOpenAI(api_key=key, http_client=http_client) as client:
        provider = OpenAIProvider(client=client)
        with pytest.raises(ProviderError) as raised:
            async for _ in provider.stream(_REQUEST, StepTag(1, 1, 1)):
                raise AssertionError("an event out of nowhere")
    assert key not in "".join(traceback.format_exception(raised.value))
    assert "[hidden]" in str(raised.value)


_REQUEST = Request(model="gpt-4o", max_tokens=1, messages=())


async def test_a_server_that_quotes_the_key_in_its_stream_is_kept_from_it_too() -> None:
    key = KEYS["openai"]
    body = f'data: {{"error": {{"message": "no key {key}", "code": 401}}}}\n\n'
    answer = httpx2.Response(200, text=body)
    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _request: answer))
    async with openai.AsyncOpenAI(api_key=key, http_client=http_client) as client:
        with pytest.raises(ProviderError) as raised:
            async for _ in OpenAIProvider(client=client).stream(_REQUEST, StepTag(1, 1, 1)):
                raise AssertionError("an event out of nowhere")
    assert raised.value.kind == "fatal"
    assert key not in "".join(traceback.format_exception(raised.value))


async def test_what_was_said_is_in_no_error_of_a_reply_that_breaks() -> None:
    async with on_line(
        "anthropic", [say(SECRET)], faults=[WireFault.cut(900)], limits=TurnLimits(max_retries=0)
    ) as line:
        outcome = await (await line.session.send("go")).outcome()
        assert outcome.status == "failed"
        assert SECRET not in (outcome.error or "")
