"""A canvas for the pictures of the docs: boxes, arrows and texts as an SVG that stands alone.

A picture has a background of its own and two sets of colours. Which set is used depends on the
reader's setting for dark mode, so that it reads on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["BACKGROUND", "COLOURS", "Canvas", "Point"]

Point = tuple[float, float]

LIGHT = {
    "paper": "#ffffff", "edge": "#d0d7de", "ink": "#1f2328", "soft": "#59636e", "line": "#7d8590",
    "plain": "#f6f8fa", "blue": "#0b62b0", "blue-fill": "#e3f0fc", "green": "#1a7437",
    "green-fill": "#e2f5e7", "orange": "#b04d00", "orange-fill": "#fdeedd", "grid": "#e3e5e8",
}  # fmt: skip
DARK = {
    "paper": "#12161c", "edge": "#3d444d", "ink": "#f0f3f6", "soft": "#a5afbb", "line": "#8b949e",
    "plain": "#1d232b", "blue": "#6cb6ff", "blue-fill": "#12304f", "green": "#5fce7f",
    "green-fill": "#12351f", "orange": "#ffa657", "orange-fill": "#46290c", "grid": "#2c333c",
}  # fmt: skip


def _variables(colours: dict[str, str]) -> str:
    return "svg{" + ";".join(f"--{name}:{value}" for name, value in colours.items()) + "}"


COLOURS = f"{_variables(LIGHT)}@media(prefers-color-scheme:dark){{{_variables(DARK)}}}"
BACKGROUND = '<rect class="paper" x="{}" y="{}" width="{}" height="{}" rx="8"/>'
STYLE = (
    f"<style>{COLOURS}"
    "text{font:13px system-ui,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--ink)}"
    "text.small{font-size:11.5px}text.soft{fill:var(--soft);font-size:11.5px}"
    "text.head{font-weight:600}text.code{font-family:ui-monospace,'DejaVu Sans Mono',monospace;"
    "font-size:11.5px}text.blue{fill:var(--blue)}text.green{fill:var(--green)}"
    "text.orange{fill:var(--orange)}"
    ".paper{fill:var(--paper);stroke:var(--edge)}"
    "rect.box{fill:var(--plain);stroke:var(--line)}"
    "rect.blue{fill:var(--blue-fill);stroke:var(--blue)}"
    "rect.green{fill:var(--green-fill);stroke:var(--green)}"
    "rect.orange{fill:var(--orange-fill);stroke:var(--orange)}"
    "rect.group{fill:none;stroke:var(--line);stroke-dasharray:5 4}"
    "path{fill:none;stroke:var(--line);stroke-width:1.4}path.blue{stroke:var(--blue)}"
    "path.green{stroke:var(--green)}path.orange{stroke:var(--orange)}"
    "path.dashed{stroke-dasharray:5 4}"
    "marker path{stroke:none;fill:var(--line)}marker path.blue{fill:var(--blue)}"
    "marker path.green{fill:var(--green)}marker path.orange{fill:var(--orange)}"
    "</style>"
)
KINDS = ("", "blue", "green", "orange")


class Canvas:
    """One picture. Places are in pixels from the upper left corner; what comes later is on top."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._width, self._height = width, height
        self._title, self._description = title, description
        self._drawn: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """A rectangle with round corners: ``box``, ``blue``, ``green``, ``orange``, ``group``."""
        self._drawn.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """One line of text, with its baseline at *y*. *kind* is one or more classes."""
        marked = f' class="{kind}"' if kind else ""
        self._drawn.append(
            f'<text{marked} x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, kind: str = "box"
    ) -> None:
        """A box with its name in the first line, and more about it, smaller, below."""
        self.rect(x, y, width, height, kind)
        baseline = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
        for index, line in enumerate(lines):
            self.text(x + width / 2, baseline + 16 * index, line, "soft" if index else "head")

    def arrow(
        self, *points: Point, kind: str = "", dashed: bool = False, both_ways: bool = False
    ) -> None:
        """A line through *points* with a head at its end, or at both."""
        self._line(points, kind, dashed, f' marker-end="url(#head-{kind})"', both_ways)

    def line(self, *points: Point, kind: str = "", dashed: bool = False) -> None:
        """A line through *points*."""
        self._line(points, kind, dashed, "", False)

    def _line(
        self, points: Sequence[Point], kind: str, dashed: bool, head: str, both_ways: bool
    ) -> None:
        way = " L".join(f"{x} {y}" for x, y in points)
        classes = " ".join(filter(None, (kind, "dashed" if dashed else "")))
        marked = f' class="{classes}"' if classes else ""
        start = f' marker-start="url(#head-{kind})"' if both_ways else ""
        self._drawn.append(f'<path{marked} d="M{way}"{start}{head}/>')

    def svg(self) -> str:
        """The picture, as the text of a file."""
        heads = "".join(
            f'<marker id="head-{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
            f' markerHeight="7" orient="auto-start-reverse"><path class="{kind}"'
            ' d="M0 0 L10 5 L0 10 z"/></marker>'
            for kind in KINDS
        )
        paper = BACKGROUND.format(0.5, 0.5, self._width - 1, self._height - 1)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}"'
            f' width="{self._width}" height="{self._height}" role="img"'
            ' aria-labelledby="title description">',
            f'<title id="title">{escape(self._title)}</title>',
            f'<desc id="description">{escape(self._description)}</desc>',
            f"{STYLE}<defs>{heads}</defs>",
            paper,
            *self._drawn,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"
