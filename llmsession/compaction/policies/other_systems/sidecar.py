"""``sidecar_projection``: what a compaction decided, kept beside a transcript that stays as it is.

A sidecar only counts for the very messages that it was made for, found by a hash of what they
say. Where one of them was edited it is ignored, and the whole transcript is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from llmsession.compaction.planning.boundaries import newest_that_fit
from llmsession.compaction.planning.policy import Budget
from llmsession.compaction.view.plan import Plan
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.messages import Message

from ..counting import sizes_in_budget
from ..limits import check_whole
from ..prefixes import cut_at_most, latest_cut, summary_plan
from ..registry import register
from .folding import fold_target, fold_trigger

__all__ = [
    "Sidecar",
    "SidecarProjection",
    "prefix_hash",
    "sidecar_of",
    "view_beside",
]


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """How the first ``source_count`` messages of a transcript are shown. The texts of the view
    go by position and block (``7#0``): ids are made anew when a transcript is read again."""

    source_count: int
    prefix_hash: str
    view: View
    texts: dict[str, str] = {}


def prefix_hash(messages: Sequence[Message]) -> str:
    """A hash of what *messages* say: side, content and what is known of a reply, without ids and
    times."""
    hashed = hashlib.sha256()
    for each in messages:
        usage = msgspec.json.encode(each.usage)
        meta = [each.role, each.model, each.provider, each.stop_reason, each.error]
        hashed.update(msgspec.json.encode([*meta, list(each.synthetic)]))
        # Each part with its length: no two prefixes come to the same bytes.
        for part in (bytes(each.body), bytes(each.extra or b""), usage):
            hashed.update(f"{len(part)}:".encode() + part)
    return f"sha256:{hashed.hexdigest()}"


def sidecar_of(view: View, messages: Sequence[Message]) -> Sidecar:
    """How *view* shows *messages*, to be kept beside them."""
    texts = {
        f"{at}#{block}": view.texts[key]
        for at, message in enumerate(messages)
        for block in range(len(message.content) if view.texts else 0)
        if (key := text_key(message, block)) in view.texts
    }
    return Sidecar(
        source_count=len(messages),
        prefix_hash=prefix_hash(messages),
        view=msgspec.structs.replace(view, texts={}),
        texts=texts,
    )


def view_beside(sidecar: Sidecar, messages: Sequence[Message]) -> View:
    """How *messages* are shown by *sidecar*: the first ones as it says, what was appended since
    in full. All of them in full, if the first ones are not those it was made for."""
    count = sidecar.source_count
    if count > len(messages) or prefix_hash(messages[:count]) != sidecar.prefix_hash:
        return View()
    texts: dict[str, str] = {}
    for place, text in sidecar.texts.items():
        at, _, block = place.partition("#")
        texts[text_key(messages[int(at)], int(block))] = text
    return msgspec.structs.replace(sidecar.view, texts=texts)


@register
class SidecarProjection(msgspec.Struct, frozen=True, kw_only=True):
    """Cline's SDK with a model: from 90 % of the limit on the newest ``preserve_tokens``, or the
    target if that is less, are kept, never less than the latest typed turn, and all before them
    becomes a summary; the transcript is not touched.

    The view is the sidecar; to keep it beside a transcript of your own there are ``sidecar_of``
    and ``view_beside``. The summary's source is not projected to fit a summariser: it goes in
    parts.
    """

    name: ClassVar[str] = "sidecar_projection"

    preserve_tokens: int = 20_000
    max_tokens: int = 0
    summary_tokens: int = 4_096

    def __post_init__(self) -> None:
        check_whole("preserve_tokens", self.preserve_tokens, 0)
        check_whole("max_tokens", self.max_tokens, 0)
        check_whole("summary_tokens", self.summary_tokens, 1)

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        """Is the trigger reached?"""
        return limit_tokens > 0 and used_tokens >= fold_trigger(limit_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        """A summary of all before the newest messages; None if nothing more can go."""
        pairs = sum(message.is_assistant and not message.tool_calls for message in messages)
        target = fold_target(budget.limit_tokens, pairs, self.max_tokens)
        keep = min(self.preserve_tokens, target)
        sizes = sizes_in_budget(view, messages, budget)
        cut = min(newest_that_fit(sizes, keep), latest_cut(view, messages, budget))
        return summary_plan(
            self.name,
            view,
            messages,
            budget,
            upto=cut_at_most(messages, cut),
            max_tokens=self.summary_tokens,
            instructions=_SECTIONS,
        )


_SECTIONS = (
    "Write it in five parts: the goal; the state of the work; highlights, with what was found and"
    " decided; what is next; the files that were read and changed."
)
