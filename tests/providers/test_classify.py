"""The classifier: what providers really answer, what must never be taken for an overflow, and
what is tried again after which delay."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession.providers.classify import (
    Failure,
    Overflow,
    classify,
    find_overflow,
    retry_delay_s,
)


def window(
    limit: int | None = None, requested: int | None = None, prompt: int | None = None
) -> Overflow:
    return Overflow(
        kind="context_window",
        limit_tokens=limit,
        requested_tokens=requested,
        prompt_tokens=prompt,
    )


OVERFLOWS: dict[str, tuple[Any, Overflow]] = {
    "Anthropic, Bedrock with Claude": (
        "prompt is too long: 274468 tokens > 200000 maximum",
        window(200_000, 274_468, 274_468),
    ),
    "Anthropic, the whole body": (
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 274468 tokens > 200000 maximum",
            },
        },
        window(200_000, 274_468, 274_468),
    ),
    "OpenAI": (
        "This model's maximum context length is 128000 tokens. However, your messages resulted in"
        " 149767 tokens. Please reduce the length of the messages.",
        window(128_000, 149_767, 149_767),
    ),
    "OpenAI, tokens per minute: larger than the whole minute": (
        {
            "error": {
                "message": "Request too large for gpt-4o in organization org-x on tokens per min"
                " (TPM): Limit 200000, Requested 480002. The input or output tokens must be"
                " reduced. Visit https://platform.openai.com/account/rate-limits to learn more.",
                "type": "tokens",
                "code": "rate_limit_exceeded",
            }
        },
        Overflow(kind="request_too_large", limit_tokens=200_000, requested_tokens=480_002),
    ),
    "OpenAI, with a link to a page about money": (
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 48002. Visit"
        " https://platform.openai.com/settings/organization/billing for higher limits.",
        Overflow(kind="request_too_large", limit_tokens=30_000, requested_tokens=48_002),
    ),
    "OpenRouter, DeepSeek": (
        "This endpoint's maximum context length is 65536 tokens. However, you requested about"
        " 70000 tokens (56811 of text input, 13189 in the output). Please reduce the length.",
        window(65_536, 70_000, 56_811),
    ),
    "DeepSeek, in the messages": (
        "This model's maximum context length is 65536 tokens. However, you requested 70193 tokens"
        " (66097 in the messages, 4096 in the completion).",
        window(65_536, 70_193, 66_097),
    ),
    "xAI": (
        "This model's maximum prompt length is 256000 but the request contains 332986 tokens.",
        window(256_000, 332_986, 332_986),
    ),
    "Mistral": (
        "Prompt contains 170397 tokens and 0 draft tokens, too large for model with 131072 maximum"
        " context length",
        window(131_072, 170_397, 170_397),
    ),
    "Google": (
        "The input token count exceeds the maximum number of tokens allowed (65536).",
        window(65_536),
    ),
    "Bedrock Sonnet": ("Input is too long for requested model.", window()),
    "Bedrock Nova, inside an HTTP 200 stream": (
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length",
        window(),
    ),
    "Bedrock Llama": (
        "This model's maximum context length is 131072 tokens. Please reduce the prompt.",
        window(131_072),
    ),
    "Cline": (
        "input length and max_tokens exceed context limit: 199999 + 8192 > 200000",
        window(200_000, 208_191, 199_999),
    ),
    "Cline, with backquotes": (
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease"
        " input length or `max_tokens` and try again",
        window(200_000, 209_573, 188_240),
    ),
    "Cline, by its words": ("Please reduce the length of the messages or completion", window()),
    "Cline, by its code": ({"error": {"code": "context_length_exceeded"}}, window()),
    "Continue, decrease": ("decrease input length or max_tokens", window()),
    "Continue, exceeds": ("9000 tokens in the prompt exceeds the limit", window(None, 9000, 9000)),
    "Continue, shorter": ("use a shorter prompt", window()),
    "llama.cpp": (
        {
            "error": {
                "code": 400,
                "message": "request (5417 tokens) exceeds the available context size (4096"
                " tokens), try increasing it",
                "type": "exceed_context_size_error",
            }
        },
        window(4096, 5417, 5417),
    ),
    "Jan": ("the request exceeds the available context size. try increasing it", window()),
    "Kimi": (
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
        window(262_144, 291_351),
    ),
    "Kimi, without what was requested": (
        "Your request exceeded model token limit: 131072",
        window(131_072),
    ),
    "Copilot": (
        "prompt token count of 140388 exceeds the limit of 128000",
        window(128_000, 140_388, 140_388),
    ),
    "SGLang": (
        "The input (140000 tokens) is longer than the model's context length (131072 tokens).",
        window(131_072, 140_000, 140_000),
    ),
    "vLLM: the prompt alone is too long": (
        "The decoder prompt (length 140000) is longer than the maximum model length of 131072."
        " Make sure that `max_model_len` is no smaller than the number of text tokens.",
        window(131_072, 140_000, 140_000),
    ),
    "Qwen": (
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 258048]",
        window(258_048),
    ),
    "OpenAI, by its words": (
        "Your input exceeds the context window of this model. Please adjust your input.",
        window(),
    ),
    "LM Studio": (
        "The number of tokens to keep from the initial prompt is greater than the context length",
        window(),
    ),
    "MiniMax": ("invalid params, context window exceeds limit", window()),
    "Ollama": ("prompt too long; exceeded max context length by 4 tokens", window()),
    "vLLM: the prompt leaves too little room for the reply": (
        "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context"
        " length is 8192 tokens and your request has 8000 input tokens (1000 > 8192 - 8000).",
        window(8192, 9000, 8000),
    ),
    "Anthropic, too many bytes": (
        {"error": {"type": "request_too_large", "message": "Request exceeds the maximum size"}},
        Overflow(kind="request_too_large"),
    ),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_with_the_figures_that_it_names(name: str) -> None:
    error, expected = OVERFLOWS[name]
    assert find_overflow(error) == expected
    assert classify(error, status=400).kind == "overflow"


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_overflow_is_known_wherever_it_is_wrapped(name: str) -> None:
    error, expected = OVERFLOWS[name]
    caused = RuntimeError("the request failed")
    caused.__cause__ = ValueError(error)
    carrying = RuntimeError("Error code: 400")
    carrying.body = error  # type: ignore[attr-defined]  # as the SDKs' errors have it
    for wrapped in ({"error": error}, [{"data": error}], carrying):
        assert find_overflow(wrapped) == expected, wrapped
    if isinstance(error, str):
        assert find_overflow(caused) == expected
        assert find_overflow(f'{{"message": "{error}"}}'.encode()) == expected


class _Cyclic(Exception):
    pass


CYCLE = _Cyclic("the server is down")
CYCLE.__cause__ = CYCLE
RING: dict[str, Any] = {"message": "nothing special"}
RING["error"] = RING

NONE_OF_THEM: dict[str, Any] = {
    "a busy account": "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used"
    " 28000, Requested 4000. Please try again in 4s.",
    "requests per minute": "Rate limit reached for requests per min (RPM): Limit 3, Used 3",
    "tokens per minute, but it would fit": "Request too large for gpt-4o on tokens per min (TPM):"
    " Limit 30000, Requested 4000.",
    "an output limit of OpenAI": "max_tokens is too large: 200000. This model supports at most"
    " 16384 completion tokens, whereas you provided 200000.",
    "an output limit of Anthropic": "max_tokens: 100000 > 64000, which is the maximum allowed"
    " number of output tokens for claude-sonnet-4-5",
    "an output limit that names the window": "max_tokens is too large: 200000. This model's"
    " maximum context length is 128000 tokens.",
    "an output limit in other words": "max_output_tokens exceeds the context window of this model",
    "vLLM: the reply alone is larger than the window": "'max_tokens' is too large: 9000. This"
    " model's maximum context length is 8192 tokens and your request has 100 input tokens"
    " (9000 > 8192 - 100).",
    "no quota left": {
        "error": {
            "message": "You exceeded your current quota, please check your plan and billing",
            "type": "insufficient_quota",
            "code": "insufficient_quota",
        }
    },
    "a wrong key": {"status": 401, "message": "Incorrect API key provided: sk-x"},
    "a model that Bedrock does not know": "The provided model identifier is invalid.",
    "a fault inside": {"status": 500, "message": "internal error computing context length"},
    "a busy account that recommends less": "Too many requests. Please reduce the length of the"
    " messages or try again later.",
    "an account without money": "Payment required: your maximum context length is 8192 tokens until"
    " you add credit.",
    "throttling that speaks of tokens": "Too many tokens, please wait before trying again.",
    "exhausted resources": {"status": "RESOURCE_EXHAUSTED", "message": "Resource exhausted"},
    "an exception that is its own cause": CYCLE,
    "an object inside itself": RING,
    "nothing": None,
    "a number": 42,
    "an empty object": {},
    "an empty text": "",
    "Vertex without figures": "Google request failed with status code 400",
}


@pytest.mark.parametrize("name", NONE_OF_THEM)
def test_what_is_no_overflow_is_never_taken_for_one(name: str) -> None:
    assert find_overflow(NONE_OF_THEM[name]) is None


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def body(self) -> Any:
        raise RuntimeError("no body")


def test_an_exception_that_cannot_be_read_is_no_overflow_and_raises_nothing() -> None:
    assert find_overflow(_Unprintable()) is None


def test_a_text_nested_too_deep_is_not_searched() -> None:
    deep: Any = "prompt is too long: 2 tokens > 1 maximum"
    for _ in range(5):
        deep = {"error": deep}
    assert find_overflow(deep) is None


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_a_server_s_trouble_is_worth_another_try(status: int) -> None:
    assert classify({"error": {"message": "later"}}, status=status).kind == "retryable"


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 422])
def test_a_caller_s_fault_is_final(status: int) -> None:
    assert classify({"error": {"message": "no"}}, status=status) == Failure("fatal")


def test_a_request_of_too_many_bytes_is_an_overflow_whatever_its_answer_says() -> None:
    assert classify("<html>413</html>", status=413).kind == "overflow"


def test_a_used_up_quota_is_final_though_its_status_is_the_one_of_a_busy_account() -> None:
    spent = NONE_OF_THEM["no quota left"]
    assert classify(spent, status=429).kind == "fatal"
    assert classify(NONE_OF_THEM["a busy account"], status=429).kind == "retryable"


@pytest.mark.parametrize(("said", "kind"), [("true", "retryable"), ("false", "fatal")])
def test_the_server_s_own_word_on_retrying_counts(said: str, kind: str) -> None:
    for status in (400, 503):
        assert classify("x", status=status, headers={"x-should-retry": said}).kind == kind


IN_STREAM: dict[str, tuple[Any, str]] = {
    "overloaded": (OVERLOADED, "retryable"),
    "api_error": ({"error": {"type": "api_error", "message": "x"}}, "retryable"),
    "invalid": ({"error": {"type": "invalid_request_error", "message": "x"}}, "fatal"),
    "a status as a number": ({"error": {"code": 502, "message": "Bad gateway"}}, "retryable"),
    "another": ({"error": {"code": 401, "message": "no"}}, "fatal"),
    "a status as text": (
        {"error": {"code": "429", "type": "None", "message": "Rate limit reached for gpt-4o"}},
        "retryable",
    ),
    "another as text": ({"error": {"code": "400", "message": "no such option"}}, "fatal"),
    "a spent quota": (
        {"error": {"code": 429, "message": "You exceeded your current quota"}},
        "fatal",
    ),
    "a busy account": ({"error": {"message": "Too many requests"}}, "retryable"),
    "requests per minute": (
        {"error": {"type": "tokens", "message": NONE_OF_THEM["requests per minute"]}},
        "retryable",
    ),
    "Bedrock": ({"error": {"type": "throttlingException", "message": "x"}}, "retryable"),
    "words": ({"error": {"message": "Invalid API key"}}, "fatal"),
    "no words": ({"error": {"message": "oops"}}, "retryable"),
    "text": ("oops", "retryable"),
    "overflow": (
        {"error": {"message": OVERFLOWS["Anthropic, Bedrock with Claude"][0]}},
        "overflow",
    ),
}


@pytest.mark.parametrize("name", IN_STREAM)
def test_an_error_in_the_middle_of_a_stream_is_classified_by_its_words(name: str) -> None:
    body, kind = IN_STREAM[name]
    assert classify(body).kind == kind
    assert classify(body, status=200).kind == kind


NOW = 1_000_000.0
DATE = "Mon, 12 Jan 1970 13:46:50 GMT"  # NOW + 10

DELAYS: dict[str, tuple[dict[str, str], float]] = {
    "seconds": ({"retry-after": "7"}, 7.0),
    "milliseconds first": ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
    "a fraction": ({"retry-after": "0.25"}, 0.25),
    "a date": ({"retry-after": DATE}, 10.0),
    "a date by the server's clock": (
        {"retry-after": DATE, "date": "Mon, 12 Jan 1970 13:46:47 GMT"},
        3.0,
    ),
    "a date that has passed": ({"retry-after": "Mon, 12 Jan 1970 13:46:30 GMT"}, 0.0),
    "nothing": ({}, 0.0),
    "nonsense": ({"retry-after": "soon"}, 0.0),
    "less than nothing": ({"retry-after": "-3"}, 0.0),
    "no number": ({"retry-after": "nan"}, 0.0),
    "for ever": ({"retry-after": "inf"}, 0.0),
}


@pytest.mark.parametrize("name", DELAYS)
def test_the_delay_is_the_one_that_the_server_asked_for(name: str) -> None:
    headers, expected = DELAYS[name]
    assert retry_delay_s(headers, now=NOW) == expected
    assert classify("x", status=429, headers=headers, now=NOW) == Failure("retryable", expected)


def test_what_is_final_has_no_delay() -> None:
    assert classify("x", status=400, headers={"retry-after": "7"}).delay_s == 0
