"""What a provider is made with is checked when it is made, and not quoted."""

from __future__ import annotations

from typing import Any

import pytest

from llmsession import AnthropicProvider, InvalidConfig, OpenAIProvider

KEY = "sk-not-a-real-key"
PROVIDERS = pytest.mark.parametrize("kind", [AnthropicProvider, OpenAIProvider])


@PROVIDERS
@pytest.mark.parametrize("address", ["localhost:8000", "/v1", "http://", "ftp://host"])
def test_an_address_without_a_scheme_or_a_host_is_refused(kind: Any, address: str) -> None:
    with pytest.raises(InvalidConfig, match="base_url must begin with http://"):
        kind(api_key=KEY, base_url=address)


@PROVIDERS
@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}\r\nmore"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_quoted(kind: Any, key: str) -> None:
    with pytest.raises(
        InvalidConfig, match="api_key has a line break, or a blank at one end"
    ) as raised:
        kind(api_key=key)
    assert KEY not in str(raised.value)


@PROVIDERS
@pytest.mark.parametrize("value", ["two\nlines", 3])
def test_a_header_that_cannot_be_sent_is_refused_by_name(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidConfig, match="header 'x-team' must be text in one line"):
        kind(api_key=KEY, headers={"x-team": value})


@PROVIDERS
def test_a_profile_that_is_none_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(InvalidConfig, match="must be a Profile, not a dict"):
        kind(api_key=KEY, profiles={"mine": {"window_tokens": 1000}})
