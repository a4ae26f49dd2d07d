"""A bar for each peer, as an SVG that stands alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from docs.pictures.canvas import BACKGROUND, COLOURS

from .rounds import Figure

__all__ = ["Bar", "bars"]

WIDTH, LEFT, RIGHT = 640, 150, 120
TOP, STEP, THICK = 34, 24, 15
MANY_TIMES = 50
"""From this ratio on, of the largest to the smallest, the axis is logarithmic."""
OURS, THEIRS = "ours", "theirs"
STYLE = (
    f"<style>{COLOURS}text{{font:11px system-ui,'DejaVu Sans',sans-serif;fill:var(--soft)}}"
    ".paper{fill:var(--paper);stroke:var(--edge)}line{stroke:var(--soft);stroke-width:1}"
    "rect.ours{fill:var(--blue)}rect.theirs{fill:var(--edge)}</style>"
)


class Bar(NamedTuple):
    """A peer's figure, None if it has none: its median is the bar, and a thin line goes from its
    least to its most. ``told`` stands behind it."""

    name: str
    value: Figure | None
    told: str
    ours: bool = False


def bars(title: str, rows: Sequence[Bar]) -> str:
    """The chart of *rows*, in their order."""
    positive = [value for row in rows for value in row.value or () if value > 0]
    logarithmic = bool(positive) and max(positive) / min(positive) > MANY_TIMES
    least = min(positive, default=1.0) / 2
    most = max(positive, default=1.0)

    def reach(value: float) -> float:
        if logarithmic:
            share = math.log(max(value, least) / least) / math.log(most / least)
        else:
            share = value / most
        return share * (WIDTH - LEFT - RIGHT)

    drawn = []
    for at, row in enumerate(rows):
        y = TOP + at * STEP
        drawn.append(_text(LEFT - 8, y, row.name, anchor="end"))
        end = LEFT
        if row.value is not None:
            length = max(reach(row.value.median), 1.0)
            end = LEFT + round(length)
            whose = OURS if row.ours else THEIRS
            drawn.append(
                f'<rect class="{whose}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{THICK}"/>'
            )
        if row.value is not None and row.value.least < row.value.most:
            first, last = LEFT + reach(row.value.least), LEFT + reach(row.value.most)
            middle = y + THICK / 2
            drawn.append(f'<line x1="{first:.1f}" y1="{middle}" x2="{last:.1f}" y2="{middle}"/>')
            end = max(end, round(last))
        drawn.append(_text(end + 6, y, row.told))
    scale = ", logarithmic" if logarithmic else ""
    height = TOP + len(rows) * STEP + 6
    description = "; ".join(f"{row.name}: {row.told}" for row in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" role="img" aria-labelledby="title description">'
        f'<title id="title">{escape(title)}</title>'
        f'<desc id="description">{escape(description)}</desc>{STYLE}'
        f"{BACKGROUND.format(0.5, 0.5, WIDTH - 1, height - 1)}"
        f"{_text(8, 8, title + scale)}{''.join(drawn)}</svg>\n"
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y + 12}" text-anchor="{anchor}">{escape(text)}</text>'
