"""The real SDKs, pointed at a strict server."""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import AsyncAnthropic
from anthropic._base_client import get_platform as anthropic_platform
from openai import AsyncOpenAI
from openai._base_client import get_platform as openai_platform

from llmsession.testing import StrictServer

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}


def anthropic_client(server: StrictServer, **options: Any) -> AsyncAnthropic:
    """A client that never retries, unless it is told to."""
    options = {"api_key": "test-key", "max_retries": 0, **options}
    client = AsyncAnthropic(base_url=server.url, **options)
    # Its first request would ask for the platform in a thread, and virtual time sees no threads.
    client._platform = anthropic_platform()
    return client


def openai_client(server: StrictServer, **options: Any) -> AsyncOpenAI:
    """The same for chat completions."""
    options = {"api_key": "test-key", "max_retries": 0, **options}
    client = AsyncOpenAI(base_url=f"{server.url}/v1", **options)
    client._platform = openai_platform()
    return client


def plain_client(server: StrictServer, **headers: str) -> httpx2.AsyncClient:
    """HTTP alone, for what no SDK would send."""
    return httpx2.AsyncClient(base_url=server.url, headers=headers or HEADERS)
