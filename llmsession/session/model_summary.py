"""Summaries by a model."""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.compaction.plan import Wanted
from llmsession.errors import ProviderError
from llmsession.providers.protocol import Provider
from llmsession.turns.messages import Message

from .config import SummariserConfig

__all__ = ["summarise_by_model"]


async def summarise_by_model(
    provider: Provider, config: SummariserConfig, wanted: Wanted, messages: Sequence[Message]
) -> str:
    """The summary that *wanted* asks for, of *messages*, the whole context."""
    raise ProviderError("not written yet", kind="fatal")
