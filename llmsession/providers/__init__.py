"""Providers: where the model's replies come from.

In: a Request, and the tag of the step that it is for. Out: a stream of events. A provider keeps no
history: it knows only what it is sent. An SDK is imported when a provider that uses it is
constructed.
"""

from .anthropic.bedrock_tokens import BedrockTokens
from .anthropic.provider import AnthropicProvider
from .counting.counted_provider import CountedProvider
from .counting.counter import CachedCounter, default_counter
from .counting.counts import CharacterCounter, Count, Counter
from .counting.gemini_tokens import GeminiTokens
from .counting.table import Counted, table_markdown
from .counting.tiktoken_counter import TiktokenCounter
from .openai.provider import OpenAIProvider
from .openai.requests import ChatDialect
from .protocol import Counting, Provider
from .replay import ReplayProvider
from .routing import RoutedProvider


def counters_markdown() -> str:
    """The table of token counters, for docs/explanation/tokens.md and docs/reference/providers.md.

    Each row says which counter is used for which models, and how far off it may be.
    """
    own = "with each provider's own endpoint"
    return table_markdown((
        Counted("Claude, of Anthropic, Vertex, Foundry", "claude-x", AnthropicProvider, own),
        Counted("Claude on Bedrock", "claude-x", BedrockTokens, "with `CountTokens`", "bedrock"),
        Counted("Gemini", "gemini-x", GeminiTokens, "with `countTokens`", "gemini"),
        Counted("OpenAI, Azure", "gpt-4o", OpenAIProvider, own),
        Counted("other OpenAI-compatible servers", "other", OpenAIProvider, own),
        Counted("recordings", "other", ReplayProvider, own),
        Counted("several, by model name", "other", RoutedProvider, "of the provider that answers"),
    ))  # fmt: skip


__all__ = [
    "AnthropicProvider",
    "BedrockTokens",
    "CachedCounter",
    "CharacterCounter",
    "ChatDialect",
    "Count",
    "CountedProvider",
    "Counter",
    "Counting",
    "GeminiTokens",
    "OpenAIProvider",
    "Provider",
    "ReplayProvider",
    "RoutedProvider",
    "TiktokenCounter",
    "default_counter",
]
