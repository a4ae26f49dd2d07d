"""Where replies come from.

In: a Request and the tag of the step that it is for. Out: a stream of events.
Absent: history; a provider sees what it is sent. The SDKs are imported where a provider that
uses one is made.
"""

from .anthropic.provider import AnthropicProvider
from .counting.counter import CachedCounter, default_counter
from .counting.counts import CharacterCounter, Count, Counter
from .counting.tiktoken_counter import TiktokenCounter
from .openai.provider import OpenAIProvider
from .openai.requests import ChatDialect
from .protocol import Counting, Provider
from .replay import ReplayProvider
from .routing import RoutedProvider

__all__ = [
    "AnthropicProvider",
    "CachedCounter",
    "CharacterCounter",
    "ChatDialect",
    "Count",
    "Counter",
    "Counting",
    "OpenAIProvider",
    "Provider",
    "ReplayProvider",
    "RoutedProvider",
    "TiktokenCounter",
    "default_counter",
]
