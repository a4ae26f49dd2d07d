"""What SDKs raise, as ProviderError: its kind, its delay, its request id, and nothing secret."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from llmsession import ProviderError
from llmsession.providers.failures import HIDDEN, Failures, StreamFault, secret_values

KEY = "totally-secret-value"
EDGE = Failures("openai", secrets=(KEY,), retries=True)


def answered(status: int, body: Any, **headers: str) -> openai.APIStatusError:
    request = httpx2.Request("POST", "https://x/v1", headers={"authorization": f"Bearer {KEY}"})
    response = httpx2.Response(status, headers=headers, request=request)
    return openai.APIStatusError(f"Error code: {status}", response=response, body=body)


def test_an_answer_becomes_its_message_status_request_id_and_delay() -> None:
    error = answered(
        429, {"message": "slow down", "type": "busy"}, **{"x-request-id": "r1", "retry-after": "3"}
    )
    found = EDGE.refused(error, now=0)
    assert str(found) == "openai answered 429: slow down (busy)"
    assert (found.kind, found.delay_s) == ("retryable", 3.0)
    assert (found.status, found.request_id) == (429, "r1")
    assert found.retried


def test_what_the_sdk_may_not_retry_is_not_said_to_be_retried() -> None:
    alone = Failures("x", secrets=(), retries=False)
    assert not alone.refused(answered(529, "x"), now=0).retried
    assert not EDGE.refused(answered(400, {"message": "no"}), now=0).retried
    told = answered(400, {"message": "prompt is too long: 2 tokens > 1 maximum"})
    assert EDGE.refused(told, now=0).kind == "overflow"
    assert not EDGE.refused(told, now=0).retried


def test_a_failed_connection_says_what_failed_below() -> None:
    error = openai.APIConnectionError(request=httpx2.Request("POST", "https://x"))
    error.__cause__ = httpx2.ConnectError("nobody at home")
    found = EDGE.refused(error, now=0)
    assert str(found) == "the connection to openai failed: ConnectError: nobody at home"
    assert found.kind == "retryable"


@pytest.mark.parametrize(
    "error", [httpx2.ReadError("gone"), ConnectionResetError("gone"), EOFError("gone")]
)
def test_a_broken_stream_is_worth_another_try_at_once_by_the_session(error: Exception) -> None:
    found = EDGE.broken(error, {"request-id": "r2"}, now=0)
    assert found.kind == "retryable"
    assert not found.retried
    assert found.request_id == "r2"
    assert "gone" in str(found)


def test_a_timeout_names_itself_and_not_what_it_was_made_of() -> None:
    error = httpx2.ReadTimeout("")
    error.__cause__ = TimeoutError()
    assert str(EDGE.broken(error, {}, now=0)) == "the stream of openai broke: ReadTimeout"


def test_half_a_character_is_a_broken_stream() -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        b"\xf0\x9f".decode()
    assert EDGE.broken(raised.value, {}, now=0).kind == "retryable"


def test_an_error_of_the_stream_is_classified_by_its_words() -> None:
    fault = StreamFault(
        {"error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r3"}
    )
    found = EDGE.broken(fault, {"request-id": "other"}, now=0)
    assert str(found) == "openai reported in its stream: Overloaded (overloaded_error)"
    assert (found.kind, found.request_id) == ("retryable", "r3")


def test_a_provider_error_goes_on_as_it_is_with_the_request_id_of_its_stream() -> None:
    error = ProviderError("broken", kind="retryable")
    assert EDGE.broken(error, {"x-request-id": "r4"}, now=0) is error
    assert error.request_id == "r4"
    assert EDGE.refused(error, now=0) is error
    assert EDGE.chainable(error) is None


def test_what_is_not_known_is_final() -> None:
    assert EDGE.refused(TypeError("odd"), now=0).kind == "fatal"
    assert EDGE.broken(TypeError("odd"), {}, now=0).kind == "fatal"


LEAKS = {
    "the key": f"Incorrect API key provided: {KEY}.",
    "another key": "Incorrect API key provided: sk-ant-0123456789abcdef.",
    "a masked key": "Incorrect API key provided: sk-abcd********wxyz.",
    "a header": f"bad header Authorization: Bearer {KEY}",
}


@pytest.mark.parametrize("name", LEAKS)
def test_no_key_is_in_an_error_and_no_cause_is_chained_that_shows_one(name: str) -> None:
    said = LEAKS[name]
    found = EDGE.refused(answered(401, {"message": said}), now=0)
    assert HIDDEN in str(found)
    for part in ("totally", "0123456789", "abcd", "wxyz"):
        assert part not in str(found)
    assert EDGE.chainable(RuntimeError(said)) is None


def test_a_cause_that_shows_nothing_is_chained() -> None:
    error = RuntimeError("a line\nand another")
    assert EDGE.chainable(error) is error


def test_what_a_server_quotes_of_the_request_is_left_out() -> None:
    said = "[{'type': 'missing', 'loc': ('body',), 'input': {'content': 'my diary'}}]"
    assert "diary" not in str(EDGE.refused(answered(422, {"message": said}), now=0))


def test_a_long_answer_is_cut_and_put_on_one_line() -> None:
    found = str(EDGE.refused(answered(500, "line\n" * 5000), now=0))
    assert len(found) < 600
    assert "\n" not in found


def test_secrets_are_the_values_that_their_names_call_so() -> None:
    settings = {"api_key": "abcdef", "base_url": "http://x/y", "timeout": 5, "auth_token": None}
    headers = {"Authorization": "Bearer abc", "x-org": "my-organisation"}
    assert secret_values(settings, headers) == ("Bearer abc", "abcdef")
    assert secret_values({"api_key": "none"}) == ()
