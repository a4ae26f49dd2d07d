"""Text that several commands print: the context bar, costs, and what of a reply is left to show."""

from __future__ import annotations

from llmsession.session.values.outcome import SessionUsage
from llmsession.turns import records as r
from llmsession.turns.blocks import TextBlock, parse_blocks
from llmsession.turns.previews import TextDelta
from llmsession.turns.spending.prices import dollars

__all__ = ["ShownText", "bar", "cost_line"]

BAR_CELLS = 20


class ShownText:
    """The text of the streaming step that was shown. Previews may be lost, above all those from
    before a client subscribed; the record that follows has the whole text."""

    def __init__(self) -> None:
        self._attempt: tuple[int, int] | None = None
        self._shown = ""

    def add(self, delta: TextDelta) -> None:
        """*delta* is shown."""
        if (delta.step, delta.attempt) != self._attempt:
            self._attempt, self._shown = (delta.step, delta.attempt), ""
        self._shown += delta.text

    def rest(self, event: object) -> tuple[str, bool]:
        """What of the reply in *event*, if one is, was not shown; and whether it goes on from what
        was, or is the whole of it."""
        reply = getattr(event, "reply", None)
        if not isinstance(reply, r.AssistantReply):
            return "", True
        texts = [b.text for b in parse_blocks(reply.body) if isinstance(b, TextBlock)]
        whole, prefix = "".join(texts), self._shown
        self._attempt, self._shown = None, ""
        goes_on = whole.startswith(prefix)
        return (whole[len(prefix) :] if goes_on else whole), goes_on


def bar(share: float, width: int = BAR_CELLS) -> str:
    """*share* of *width* cells filled; more than all is all."""
    filled = min(width, round(share * width))
    return "█" * filled + "░" * (width - filled)


def cost_line(usage: SessionUsage) -> str:
    """What a session cost, by the list prices; what has none is said, and is not 0."""
    if usage.cost_nano_usd is not None:
        return f"cost {dollars(usage.cost_nano_usd)}"
    models = ", ".join(name or "(model not known)" for name in usage.unpriced)
    known = f"{dollars(usage.priced_nano_usd)} and more; " if usage.priced_nano_usd else ""
    return f"cost {known}not known for {models}"
