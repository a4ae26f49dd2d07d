"""Where replies come from.

In: a Request and the tag of the step that it is for. Out: a stream of events.
Absent: history; a provider sees what it is sent. The SDKs are imported where a provider that
uses one is made.
"""

from .anthropic import AnthropicProvider
from .counting import CachedCounter, default_counter
from .counts import CharacterCounter, Count, Counter, Counting
from .openai import OpenAIProvider
from .openai_requests import ChatDialect
from .protocol import Provider
from .replay import ReplayProvider
from .routing import RoutedProvider
from .tiktoken_counter import TiktokenCounter

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
