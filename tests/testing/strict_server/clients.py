"""The real SDKs, pointed at a strict server. It speaks plain HTTP, so no certificates are read:
that would take each client some ten milliseconds."""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic import DefaultAsyncHttpxClient as AnthropicHttp
from anthropic._base_client import get_platform as anthropic_platform
from openai import AsyncOpenAI
from openai import DefaultAsyncHttpxClient as OpenAIHttp
from openai._base_client import get_platform as openai_platform

from llmsession.testing import StrictServer

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}


def anthropic_client(server: StrictServer, **options: Any) -> AsyncAnthropic:
    """A client that never retries, unless it is told to."""
    options = {"api_key": "test-key", "max_retries": 0, **options}
    http = AnthropicHttp(base_url=server.url, verify=False)
    client = AsyncAnthropic(base_url=server.url, http_client=http, **options)
    # Its first request would ask for the platform in a thread, and virtual time sees no threads.
    client._platform = anthropic_platform()
    return client


def openai_client(server: StrictServer, **options: Any) -> AsyncOpenAI:
    """The same for chat completions."""
    options = {"api_key": "test-key", "max_retries": 0, **options}
    http = OpenAIHttp(base_url=f"{server.url}/v1", verify=False)
    client = AsyncOpenAI(base_url=f"{server.url}/v1", http_client=http, **options)
    client._platform = openai_platform()
    return client


def plain_client(server: StrictServer, **headers: str) -> httpx2.AsyncClient:
    """HTTP alone, for what no SDK would send."""
    return httpx2.AsyncClient(base_url=server.url, headers=headers or HEADERS, verify=False)
