"""Writing a summary for a prefix: by a model where one is configured, else by rules.

Whatever goes wrong with a model changes nothing: the summary is extracted by rules instead, and
after some failures in a row the model is not asked again until something changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.to_thread

from llmsession.compaction.plan import Wanted
from llmsession.compaction.segments import extracted_segment, introduced
from llmsession.errors import error_text
from llmsession.turns.messages import Message
from llmsession.turns.records import Segment

from .core import Core
from .model_summary import summarise_by_model

__all__ = ["Summarising"]


class Summarising:
    """One session's summaries. ``failures`` counts those of its model in a row."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.failures = 0

    def extracted(self, wanted: Wanted, messages: Sequence[Message]) -> Segment | None:
        """The segment by rules alone; never waits."""
        return extracted_segment(wanted, messages, self._core.builder.profile.chars_per_token)

    async def segment(self, wanted: Wanted, messages: Sequence[Message]) -> Segment | None:
        """The segment that *wanted* asks for, None if there is nothing to say. Raises nothing but
        cancellation."""
        compaction = self._core.config.compaction
        config = compaction.summariser
        if config is not None and self.failures < compaction.max_failures:
            try:
                with anyio.fail_after(config.deadline_s):
                    text = await summarise_by_model(
                        self._core.world.summariser or self._core.provider,
                        config,
                        wanted,
                        messages,
                    )
            except Exception as error:  # a provider may be anybody's code
                self.failures += 1
                self._core.log.trouble("summary.failed", error=error_text(error))
            else:
                self.failures = 0
                return Segment(wanted.upto, introduced(text), "model")
        return await anyio.to_thread.run_sync(
            self.extracted, wanted, messages, abandon_on_cancel=True
        )
