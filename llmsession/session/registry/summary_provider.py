"""The provider of summaries that the environment names."""

from __future__ import annotations

from collections.abc import Mapping

from llmsession.errors import InvalidConfig
from llmsession.providers.protocol import Provider

from ..values.environment import SUMMARY_PROVIDER_VARIABLE

__all__ = ["summary_provider"]


def summary_provider(environ: Mapping[str, str]) -> Provider | None:
    """The provider that ``LLMSESSION_SUMMARY_PROVIDER`` names in *environ*: ``anthropic`` or
    ``openai``.

    It uses the API key and the base URL in the SDK's own variables. Returns None if the variable is
    not set. Raises InvalidConfig for another name, and if the SDK or the key is missing.
    """
    name = environ.get(SUMMARY_PROVIDER_VARIABLE, "").strip()
    if not name:
        return None
    # Imported here: a manager without such a provider needs no SDK.
    from llmsession.providers import AnthropicProvider, OpenAIProvider

    kinds: dict[str, type[AnthropicProvider | OpenAIProvider]] = {
        "anthropic": AnthropicProvider,
        "openai": OpenAIProvider,
    }
    if name not in kinds:
        raise InvalidConfig(f"{SUMMARY_PROVIDER_VARIABLE} is {name!r}; use anthropic or openai")
    prefix = name.upper()
    try:
        return kinds[name](
            api_key=environ.get(f"{prefix}_API_KEY") or None,
            base_url=environ.get(f"{prefix}_BASE_URL") or None,
        )
    except InvalidConfig as error:
        raise InvalidConfig(f"{SUMMARY_PROVIDER_VARIABLE} is {name!r}: {error}") from error
