"""The strict server over real HTTP, through the real SDKs, in virtual time on both backends."""

from __future__ import annotations

import math
from typing import Any

import anthropic
import anyio
import httpx2
import openai
import pytest

from llmsession.errors import ProviderError
from llmsession.testing import (
    RandomFaults,
    ScriptedReply,
    StrictServer,
    WireFault,
    block,
    call,
    never,
    say,
    think,
)
from llmsession.turns.usage import Usage
from tests.testing.strict_server.clients import (
    HEADERS,
    anthropic_client,
    openai_client,
    plain_client,
)

pytestmark = [
    pytest.mark.sockets,
    # Where a stream ends early, the SDKs leave their generators to the collector; trio minds.
    pytest.mark.filterwarnings(
        r"ignore:Async generator '(anthropic|openai|http(x|core)2)\.:ResourceWarning"
    ),
]

HI: list[Any] = [{"role": "user", "content": "hi"}]
LS: Any = {"name": "ls", "input_schema": {"type": "object", "properties": {}}}
ASK: dict[str, Any] = {"model": "test-model", "max_tokens": 1000, "messages": HI}
CHAT: dict[str, Any] = {"model": "test-model", "messages": HI}
MIXED = (
    think("let me see")
    + say("Grüße, 世界 😀")
    + call("ls", {"path": ".", "deep": {"n": [1, 2.5, None]}}, id="c1")
    + call("ls", id="c2")
)
SEARCH = (
    block({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}})
    + block({"type": "web_search_tool_result", "tool_use_id": "s1", "content": []})
    + block(
        {
            "type": "text",
            "text": "so it is",
            "citations": [
                {
                    "type": "char_location",
                    "cited_text": "so",
                    "document_index": 0,
                    "document_title": None,
                    "end_char_index": 2,
                    "file_id": None,
                    "start_char_index": 0,
                }
            ],
        }
    )
    + block({"type": "redacted_thinking", "data": "x"})
)


async def text_of(client: anthropic.AsyncAnthropic, **changed: Any) -> str:
    """Ask with a stream, and read all of it."""
    async with client.messages.stream(**{**ASK, **changed}) as stream:
        return await stream.get_final_text()


# What is said.


@pytest.mark.parametrize("reply", [say("hello"), MIXED, SEARCH], ids=["text", "mixed", "search"])
@pytest.mark.parametrize("delta_chars", [1, 1000])
async def test_a_stream_and_a_whole_reply_are_the_same_message(
    reply: ScriptedReply, delta_chars: int
) -> None:
    reply = reply.slow(0.0, delta_chars=delta_chars)
    async with StrictServer([reply, reply]) as server, anthropic_client(server) as client:
        whole = await client.messages.create(**ASK)
        async with client.messages.stream(**ASK) as stream:
            streamed = await stream.get_final_message()
    as_sent = whole.model_dump(exclude={"id"}, exclude_unset=True)
    assert streamed.model_dump(include=set(as_sent), exclude_unset=True) == as_sent
    assert [block.type for block in whole.content] == [block.type for block in streamed.content]


async def test_a_chat_stream_and_a_whole_chat_are_the_same_message() -> None:
    async with StrictServer([MIXED, MIXED]) as server, openai_client(server) as client:
        whole = (await client.chat.completions.create(**CHAT)).choices[0]
        async with client.chat.completions.stream(**CHAT) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
    assert whole.message.content == streamed.message.content == "Grüße, 世界 😀"
    assert whole.finish_reason == streamed.finish_reason == "tool_calls"
    calls = [
        [(one.id, one.function.name, one.function.arguments) for one in calls or ()]
        for calls in (whole.message.tool_calls, streamed.message.tool_calls)
    ]
    assert calls[0] == calls[1]
    assert calls[0][0] == ("c1", "ls", '{"path":".","deep":{"n":[1,2.5,null]}}')


async def test_a_conversation_with_thinking_and_tools_goes_round() -> None:
    script = [think("a") + call("ls", id="c1"), think("b") + say("done"), say("again")]
    messages = list(HI)
    async with StrictServer(script) as server, anthropic_client(server) as client:
        answer: Any
        for answer in ([{"type": "tool_result", "tool_use_id": "c1", "content": "x"}], "and?"):
            async with client.messages.stream(**ASK | {"messages": messages, "tools": [LS]}) as s:
                reply = await s.get_final_message()
            messages += [
                {"role": "assistant", "content": reply.content},
                {"role": "user", "content": answer},
            ]
        assert await text_of(client, messages=messages, tools=[LS]) == "again"
        messages[0] = {"role": "user", "content": "ho"}
        with pytest.raises(anthropic.BadRequestError, match="bound to a different conversation"):
            await text_of(client, messages=messages, tools=[LS])
    assert [one.valid for one in server.requests] == [True, True, True, False]


async def test_usage_tells_what_the_cache_read_and_wrote() -> None:
    marked: Any = [{"type": "text", "text": "a" * 8000, "cache_control": {"type": "ephemeral"}}]
    async with StrictServer() as server, anthropic_client(server) as client:
        usages = [(await client.messages.create(**ASK, system=marked)).usage for _ in range(2)]
        await anyio.sleep(301)
        usages.append((await client.messages.create(**ASK, system=marked)).usage)
    seen = [(one.cache_creation_input_tokens, one.cache_read_input_tokens) for one in usages]
    assert seen == [(2003, 0), (0, 2003), (2003, 0)]
    assert server.requests[1].cost is not None
    assert server.requests[1].cost.usage == Usage(8, 4, 2003, 0)


async def test_a_cost_that_the_script_tells_is_the_one_that_is_reported() -> None:
    usage = Usage(120_000, 7, 30, 40)
    async with StrictServer([say("x").costing(usage)] * 2) as server:
        async with anthropic_client(server) as client:
            told = (await client.messages.create(**ASK)).usage
        assert (told.input_tokens, told.output_tokens) == (120_000, 7)
        assert (told.cache_read_input_tokens, told.cache_creation_input_tokens) == (30, 40)
        async with openai_client(server) as chat:
            counted = (await chat.chat.completions.create(**CHAT)).usage
    assert counted is not None
    assert counted.prompt_tokens == 120_070


async def test_tokens_are_counted_as_they_are_charged() -> None:
    async with StrictServer() as server, anthropic_client(server) as client:
        counted = await client.messages.count_tokens(model="test-model", messages=HI, tools=[LS])
        charged = await client.messages.create(**ASK, tools=[LS])
    assert counted.input_tokens == charged.usage.input_tokens


async def test_models_are_listed_for_both() -> None:
    async with StrictServer(models={}) as server:
        async with anthropic_client(server) as client:
            listed = [model.id async for model in client.models.list()]
            assert (await client.models.retrieve("claude-opus-5-5")).id == "claude-opus-5-5"
            with pytest.raises(anthropic.NotFoundError, match="model: nought"):
                await client.models.retrieve("nought")
        assert "test-model" in listed
        async with openai_client(server) as chat:
            assert "gpt-4o" in [model.id async for model in chat.models.list()]


# What is refused.


async def test_a_broken_rule_is_a_400_with_the_real_words() -> None:
    async with StrictServer() as server:
        async with anthropic_client(server) as client:
            with pytest.raises(anthropic.BadRequestError) as caught:
                await client.messages.create(**ASK | {"messages": []})
        assert caught.value.body == {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "messages: at least one message is required",
            },
            "request_id": "req_strict_000000",
        }
        assert caught.value.request_id == "req_strict_000000"
        async with openai_client(server) as chat:
            with pytest.raises(openai.BadRequestError) as refused:
                await chat.chat.completions.create(**CHAT | {"messages": []})
        assert (refused.value.param, refused.value.code) == ("messages", "empty_array")
        assert refused.value.request_id == "req_strict_000001"
    assert [one.valid for one in server.requests] == [False, False]


async def test_a_wrong_key_is_a_401_and_is_not_written_down() -> None:
    async with StrictServer(api_keys={"right"}) as server:
        async with anthropic_client(server, api_key="wrong-key") as client:
            with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
                await client.messages.create(**ASK)
        async with openai_client(server, api_key="wrong-key") as chat:
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
                await chat.chat.completions.create(**CHAT)
        async with anthropic_client(server, api_key="right") as client:
            await client.messages.create(**ASK)
    assert "wrong-key" not in str(server.requests)


@pytest.mark.parametrize(
    ("asked", "headers", "content", "status", "said"),
    [
        ("POST /v1/messages", {"anthropic-version": "1"}, b"{}", 401, "x-api-key header is req"),
        ("POST /v1/messages", {"x-api-key": "k"}, b"{}", 400, "anthropic-version: header is"),
        ("GET /v1/messages", HEADERS, b"", 405, "Method Not Allowed"),
        ("POST /v1/complete", HEADERS, b"{}", 404, "Not Found"),
        ("POST /v1/messages", HEADERS, b"{", 400, "The request body is not valid JSON"),
        ("POST /v1/messages", HEADERS, b"\xff", 400, "The request body is not valid JSON"),
        ("POST /v1/messages", HEADERS, b"[" * 9999, 400, "The request body is not valid JSON"),
        ("POST /v1/messages", HEADERS, b"[]", 400, "Input should be a valid dictionary"),
        ("POST /v1/messages", HEADERS, b" " * 33_600_000, 413, "exceeds the maximum size"),
        ("POST /v1/chat/completions", {}, b"{}", 401, "You didn't provide an API key"),
        (
            "POST /v1/chat/completions",
            {"authorization": "Bearer k"},
            b"{",
            400,
            "We could not parse the JSON body",
        ),
        ("POST /v1/nought", {"authorization": "Bearer k"}, b"", 404, "Invalid URL (POST /v1/n"),
        (
            "PUT /v1/chat/completions",
            {"authorization": "Bearer k"},
            b"",
            405,
            "Not allowed to PUT on /v1/chat/completions",
        ),
    ],
)
async def test_what_no_sdk_sends_is_refused(
    asked: str, headers: dict[str, str], content: bytes, status: int, said: str
) -> None:
    method, path = asked.split()
    async with StrictServer() as server, plain_client(server, **headers) as client:
        response = await client.request(method, path, content=content)
        assert response.status_code == status
        assert said in response.json()["error"]["message"]
        again = await client.request(method, path, content=b"{")
        assert again.status_code >= 400
    assert server.accepted_connections == 1


async def test_a_head_request_is_answered_without_a_body() -> None:
    async with StrictServer() as server, plain_client(server) as client:
        response = await client.head("/v1/messages")
        assert (response.status_code, response.content) == (405, b"")
        assert (await client.get("/v1/models")).status_code == 200


async def test_what_is_no_http_is_refused_and_the_server_goes_on() -> None:
    async with StrictServer() as server:
        port = int(server.url.rpartition(":")[2])
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"\x16\x03\x01 hello\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 400")
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        async with anthropic_client(server) as client:
            assert await text_of(client) == "hi"


async def test_a_request_beyond_the_script_is_refused_and_says_which() -> None:
    async with StrictServer([]) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.BadRequestError, match="no reply for request 0"):
            await client.messages.create(**ASK)


# What goes wrong.


async def test_a_rate_limit_is_waited_for_as_long_as_it_says() -> None:
    faults = [WireFault.rate_limited(1.5), WireFault.rate_limited(30)]
    server = StrictServer(["hello"], faults=faults)
    async with server, anthropic_client(server, max_retries=2) as client:
        started_s = anyio.current_time()
        assert await text_of(client) == "hello"
        assert anyio.current_time() - started_s == pytest.approx(31.5)
    assert [one.refusal.status if one.refusal else 200 for one in server.requests] == [
        429, 429, 200,
    ]  # fmt: skip
    assert all(one.valid for one in server.requests)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (WireFault.rate_limited(), 429),
        (WireFault.overloaded(), 529),
        (WireFault.server_error(), 500),
        (WireFault.server_error(504), 504),
    ],
)
async def test_a_failure_of_the_server_has_its_status(fault: WireFault, status: int) -> None:
    async with StrictServer(["kept"], faults=[fault]) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await text_of(client)
        assert caught.value.status_code == status
        assert await text_of(client) == "kept"


@pytest.mark.parametrize("fault", [WireFault.cut, WireFault.reset])
async def test_a_connection_that_ends_before_the_answer_is_a_connection_error(fault: Any) -> None:
    server = StrictServer(["kept"], faults=[fault()])
    async with server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIConnectionError):
            await text_of(client)
        assert await text_of(client) == "kept"
    assert [one.ended for one in server.requests] == [fault().kind, "whole"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (WireFault.cut(300), httpx2.RemoteProtocolError),
        (WireFault.reset(300), httpx2.ReadError),
    ],
)
async def test_a_stream_that_ends_in_its_middle_fails_and_its_reply_is_kept(
    fault: WireFault, error: type[Exception]
) -> None:
    async with StrictServer([MIXED], faults=[fault]) as server, anthropic_client(server) as client:
        with pytest.raises(error):
            await text_of(client)
        assert "Grüße" in await text_of(client)
    assert [one.ended for one in server.requests] == [fault.kind, "whole"]


async def cut_everywhere(step: int) -> int:
    """Cut a stream with characters of several bytes after every *step*-th byte. Gives the
    number of cuts."""
    reply = say("😀é世").slow(0.0, delta_chars=1)
    async with StrictServer(lambda _: reply) as server, plain_client(server) as client:
        whole = (await client.post("/v1/messages", json=ASK | {"stream": True})).content
    places = range(0, len(whole), step)
    faults = [WireFault.cut(place) for place in places]
    server = StrictServer(lambda _: reply, faults=faults)
    asked: Any = {"method": "POST", "url": "/v1/messages", "json": ASK | {"stream": True}}
    async with server, plain_client(server) as client:
        for place in places:
            body = b""
            with pytest.raises(httpx2.RemoteProtocolError):
                async with client.stream(**asked) as response:
                    async for piece in response.aiter_bytes():
                        body += piece
            # The bodies differ from the first one, in the number that stands in their ids.
            assert len(body) == place
    return len(places)


async def test_a_stream_is_cut_at_the_byte_that_was_asked_for() -> None:
    assert await cut_everywhere(step=41) > 20


@pytest.mark.long
async def test_a_stream_is_cut_at_every_byte() -> None:
    assert await cut_everywhere(step=1) > 1000


async def test_an_error_in_the_middle_of_a_stream_is_an_event() -> None:
    faults = [WireFault.error_event(after_events=3), WireFault.error_event()]
    async with StrictServer([MIXED], faults=faults) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await text_of(client)
        assert "overloaded_error" in str(caught.value.body)
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(**ASK)
        assert caught.value.status_code == 529
        assert "Grüße" in await text_of(client)


async def test_an_error_in_the_middle_of_a_chat_is_a_chunk() -> None:
    fault = WireFault.error_event(after_events=2)
    async with StrictServer([MIXED], faults=[fault]) as server, openai_client(server) as client:
        with pytest.raises(openai.APIError, match="overloaded or not ready"):
            async for _ in await client.chat.completions.create(**CHAT, stream=True):
                pass


async def test_pings_are_read_over() -> None:
    faults = [WireFault.pings(), WireFault.pings()]
    async with StrictServer(["hello", "hello"], faults=faults) as server:
        async with anthropic_client(server) as client:
            assert await text_of(client) == "hello"
        async with openai_client(server) as chat, chat.chat.completions.stream(**CHAT) as stream:
            completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "hello"


async def test_a_stall_lasts_as_long_as_it_was_told_and_then_all_goes_on() -> None:
    faults = [WireFault.stall(50), WireFault.stall(50, after_bytes=300)]
    server = StrictServer(["one", "two"], faults=faults)
    async with server, anthropic_client(server) as client:
        for said in ("one", "two"):
            started_s = anyio.current_time()
            assert await text_of(client) == said
            assert anyio.current_time() - started_s == pytest.approx(50)


async def test_a_stall_beyond_the_clients_timeout_is_a_timeout() -> None:
    faults = [WireFault.stall(), WireFault.stall(after_bytes=300)]
    async with StrictServer([MIXED], faults=faults) as server:
        async with anthropic_client(server, timeout=20) as client:
            with pytest.raises(anthropic.APITimeoutError):
                await text_of(client)
            with pytest.raises(httpx2.ReadTimeout):
                await text_of(client)
            assert "Grüße" in await text_of(client)
        await server.wait_for(lambda _: server.open_replies == 0)
    assert [one.ended for one in server.requests] == ["closed_by_client"] * 2 + ["whole"]


async def test_chance_faults_never_make_a_wrong_answer() -> None:
    faults = RandomFaults(seed=5, rate=0.6)
    met = 0
    server = StrictServer([f"reply {at}" for at in range(40)], faults=faults)
    async with server, anthropic_client(server, timeout=10) as client:
        for at in range(40):
            said = ""
            while not said:
                try:
                    said = await text_of(client)
                except (anthropic.APIError, httpx2.TransportError):
                    met += 1
            assert said == f"reply {at}"
    assert met > 20
    assert met == sum(one.fault is not None and one.fault.loses_the_reply
                      for one in server.requests)  # fmt: skip


# A script's own misbehaviour, as it plays in ScriptedProvider.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProviderError("busy", kind="retryable", delay_s=2.0), 529),
        (ProviderError("large", kind="overflow"), 400),
        (ProviderError("no", kind="fatal"), 400),
    ],
)
async def test_a_reply_that_raises_is_refused(error: ProviderError, status: int) -> None:
    script = [say("x").raising(error), say("x").raising(error)]
    async with StrictServer(script) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await text_of(client)
        assert caught.value.status_code == status
        assert ("prompt is too long" in str(caught.value)) is (error.kind == "overflow")
        assert (caught.value.response.headers.get("retry-after") == "2") is (status == 529)
        with pytest.raises(anthropic.APIStatusError):
            await client.messages.create(**ASK)


async def test_a_reply_that_raises_midway_says_it_in_the_stream() -> None:
    busy = ProviderError("busy", kind="retryable")
    script = [say("long enough").raising(busy, at=2), say("so").raising(OSError("broke"), at=2)]
    async with StrictServer(script) as server, anthropic_client(server) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            await text_of(client)
        with pytest.raises(httpx2.ReadError):
            await text_of(client)


async def test_a_slow_reply_takes_its_time_and_a_silent_one_never_ends() -> None:
    script = [say("abcd").slow(10, delta_chars=1), say("abcd").slow(10, delta_chars=1), never()]
    async with StrictServer(script) as server, anthropic_client(server) as client:
        for ask in (text_of(client), client.messages.create(**ASK)):
            started_s = anyio.current_time()
            await ask
            assert anyio.current_time() - started_s == pytest.approx(80)
        with anyio.move_on_after(500) as waited:
            await text_of(client)
        assert waited.cancelled_caught


async def test_a_pause_that_ignores_cancellation_is_a_silence_of_that_length() -> None:
    script = [say("so").ignoring_cancellation(25, at=2), say("so").ignoring_cancellation(25)]
    async with StrictServer(script) as server, anthropic_client(server) as client:
        started_s = anyio.current_time()
        assert await text_of(client) == "so"
        await client.messages.create(**ASK)
        assert anyio.current_time() - started_s == pytest.approx(50)


async def test_events_out_of_order_go_out_out_of_order() -> None:
    async with StrictServer([say("so").out_of_order()]) as server, plain_client(server) as client:
        raw = (await client.post("/v1/messages", json=ASK | {"stream": True})).text
    assert raw.index("content_block_delta") < raw.index("content_block_start")


# Connections, and who ends them.


async def test_an_interrupt_closes_its_connection_and_is_counted() -> None:
    silent = say("abcdefgh").hanging(at=3)
    async with StrictServer([silent, "next"]) as server, anthropic_client(server) as client:
        with anyio.move_on_after(35):
            await text_of(client)
        with anyio.fail_after(1):  # without another byte that would have to be sent
            await server.wait_for(lambda _: server.closed_by_client == 1)
        assert (server.open_connections, server.open_replies) == (0, 0)
        assert server.requests[0].ended == "closed_by_client"
        assert await text_of(client) == "next"


async def test_requests_share_a_connection() -> None:
    async with StrictServer() as server, anthropic_client(server) as client:
        for _ in range(5):
            assert await text_of(client) == "hi"
        assert (server.accepted_connections, server.open_connections) == (1, 1)
    assert server.open_connections == 0


async def test_many_conversations_at_once_each_have_their_own_script() -> None:
    await converse(10)


@pytest.mark.long
async def test_a_thousand_conversations_at_once_each_have_their_own_script() -> None:
    await converse(1000)


async def converse(count: int) -> None:
    names = [f"c{at}" for at in range(count)]
    script = {name: [say(f"{name} {turn}").slow(3) for turn in range(3)] for name in names}

    async def one(client: anthropic.AsyncAnthropic, name: str) -> None:
        for turn in range(3):
            said = await text_of(client, metadata={"user_id": name})
            assert said == f"{name} {turn}"

    server = StrictServer(script)
    async with server, anthropic_client(server) as client, anyio.create_task_group() as group:
        for name in names:
            group.start_soon(one, client, name)
    assert len(server.requests) == 3 * count
    assert all(received.ended == "whole" for received in server.requests)


async def test_leaving_the_server_ends_every_reply() -> None:
    errors = []

    async def ask(client: anthropic.AsyncAnthropic) -> None:
        try:
            await text_of(client)
        except (anthropic.APIConnectionError, httpx2.TransportError) as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        async with StrictServer([never(), never()]) as server:
            client = anthropic_client(server)
            group.start_soon(ask, client)
            group.start_soon(ask, client)
            await server.wait_for(lambda _: server.open_replies == 2)
        await anyio.wait_all_tasks_blocked()
        assert len(errors) == 2
        await client.close()


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with StrictServer():
            raise KeyError("mine")
    with anyio.move_on_after(5) as scope:
        async with StrictServer():
            await anyio.sleep(math.inf)
    assert scope.cancelled_caught


async def test_a_function_sees_what_was_received() -> None:
    def answer(received: Any) -> str:
        return f"{received.path} {len(received.messages)} {received.body['max_tokens']}"

    async with StrictServer(answer) as server, anthropic_client(server) as client:
        assert await text_of(client) == "/v1/messages 1 1000"


async def test_of_old_requests_only_the_verdict_is_kept_where_it_is_asked_for() -> None:
    async with StrictServer(keep=1) as server, anthropic_client(server) as client:
        for _ in range(2):
            await client.messages.create(**ASK)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**ASK | {"messages": []})
    assert [received.body is None for received in server.requests] == [True, True, False]
    assert [received.valid for received in server.requests] == [True, True, False]
    assert server.requests[0].ended == "whole"
