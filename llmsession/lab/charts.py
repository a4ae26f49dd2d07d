"""Charts as inline SVG, without scripts: curves over steps, and a scatter plot with its Pareto
frontier.

No tick is written twice, and no two labels overlap; ``labels`` takes care of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .labels import Frame, Label, Spot, placed, ticks

__all__ = ["Dot", "Line", "curves", "scatter"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 28, 34
"""The margins. Above the axes there is room for the name of the vertical one."""
RADIUS = 4.5
MAX_POINTS = 400
"""In a longer curve each point represents several steps, by the highest of them."""


class Line(NamedTuple):
    """A curve: (x, y) points in order, and those of them that are marked. A curve in the background
    is drawn thin and grey, under the others.
    """

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float], ...] = ()
    stands_back: bool = False


class Dot(NamedTuple):
    """A point of a scatter plot. A hollow one is not comparable with the others. One without *y*
    has no such value and is drawn on the axis as a square.
    """

    name: str
    colour: str
    x: float
    y: float | None
    told: str
    hollow: bool = False


class _Scale(NamedTuple):
    least: float
    most: float
    start: float
    end: float

    def nearest(self, value: float) -> float:
        """The value on the scale that is nearest to *value*."""
        return min(max(value, self.least), self.most)

    def at(self, value: float) -> str:
        span = (self.most - self.least) or 1.0
        return f"{self.start + (value - self.least) / span * (self.end - self.start):.1f}"


def curves(lines: Sequence[Line], *, limit: float | None, x_name: str, y_name: str) -> str:
    """*lines* in one chart, with *limit* as a dashed line; "" if there is no point."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    top = max([y for _, y in points] + ([limit] if limit else []))
    x_scale = _Scale(0, max(x for x, _ in points), LEFT, WIDTH - RIGHT)
    y_scale = _Scale(0, top * 1.05, HEIGHT - BOTTOM, TOP)
    drawn = [_axes(x_scale, y_scale, x_name, y_name, whole=True)]
    if limit:
        y = y_scale.at(limit)
        drawn.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    for line in sorted(lines, key=lambda line: not line.stands_back):
        path = " ".join(f"{x_scale.at(x)},{y_scale.at(y)}" for x, y in _thinned(line.points))
        style = 'class="back"' if line.stands_back else f'stroke="{line.colour}"'
        title = f"<title>{escape(line.name)}</title>"
        drawn.append(f'<polyline {style} points="{path}">{title}</polyline>')
        if not line.stands_back:
            drawn += [
                f'<circle class="mark" fill="{line.colour}" r="2.6"'
                f' cx="{x_scale.at(x)}" cy="{y_scale.at(y)}">{title}</circle>'
                for x, y in line.marks
            ]
    return _svg(drawn, f"{y_name} over {x_name}")


def scatter(
    dots: Sequence[Dot], best: Sequence[tuple[float, float]], *, x_name: str, y_name: str
) -> str:
    """A scatter plot of *dots*, with a line through those that are *best*; "" if there is no dot.

    Each dot is labelled with its name or, beside others, with its number among *dots*, from 1. A
    hollow dot that is far off is drawn at the edge.
    """
    if not dots:
        return ""
    # Hollow dots may lie far off and would press the others into a corner, so they do not define
    # the scale.
    seen = [dot for dot in dots if not dot.hollow] or list(dots)
    x_scale = _spread([dot.x for dot in seen], LEFT + 8, WIDTH - RIGHT - 8)
    heights = [dot.y for dot in seen if dot.y is not None] or [
        dot.y for dot in dots if dot.y is not None
    ]
    y_scale = _spread(heights or [0.0, 1.0], HEIGHT - BOTTOM - 14, TOP + 8)
    drawn = [_axes(x_scale, y_scale, x_name, y_name)]
    if best:
        path = " ".join(f"{x_scale.at(x)},{y_scale.at(y)}" for x, y in sorted(best))
        drawn.append(f'<polyline class="frontier" points="{path}"/>')
    spots = []
    for number, dot in enumerate(dots, 1):
        x = float(x_scale.at(x_scale.nearest(dot.x)))
        on_axis = float(HEIGHT - BOTTOM)
        y = on_axis if dot.y is None else float(y_scale.at(y_scale.nearest(dot.y)))
        drawn.append(_mark(dot, x, y))
        spots.append(Spot(number, dot.name, x, y))
    frame = Frame(LEFT, TOP, WIDTH, HEIGHT - BOTTOM - 1)
    drawn += map(_name_of, placed(spots, frame))
    return _svg(drawn, f"{y_name} against {x_name}")


def _mark(dot: Dot, x: float, y: float) -> str:
    fill = "none" if dot.hollow else dot.colour
    style = f'fill="{fill}" stroke="{dot.colour}"'
    title = f"<title>{escape(dot.told)}</title>"
    if dot.y is not None:
        return f'<circle r="{RADIUS}" cx="{x}" cy="{y}" {style}>{title}</circle>'
    place = f'x="{x - RADIUS:.1f}" y="{y - RADIUS:.1f}" width="{2 * RADIUS}" height="{2 * RADIUS}"'
    return f"<rect {place} {style}>{title}</rect>"


def _name_of(label: Label) -> str:
    title = ", ".join(f"{spot.number} {spot.name}" for spot in label.spots)
    return (
        f'<text class="name" x="{label.box.left:.1f}" y="{label.box.bottom - 2.5:.1f}">'
        f"{escape(label.text)}<title>{escape(title)}</title></text>"
    )


def _spread(values: Sequence[float], start: float, end: float) -> _Scale:
    minimum, maximum = min(values), max(values)
    room = (maximum - minimum) * 0.06 or abs(maximum) * 0.06 or 1.0
    return _Scale(minimum - room, maximum + room, start, end)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= MAX_POINTS:
        return list(points)
    size = -(-len(points) // MAX_POINTS)
    buckets = (points[index : index + size] for index in range(0, len(points), size))
    return [max(bucket, key=lambda point: point[1]) for bucket in buckets]


def _axes(
    x_scale: _Scale, y_scale: _Scale, x_name: str, y_name: str, *, whole: bool = False
) -> str:
    """The axes with their ticks. With *whole* the ticks of the horizontal axis are whole
    numbers.
    """
    drawn = []
    for y_value, text in ticks(y_scale.least, y_scale.most):
        y = y_scale.at(y_value)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        drawn.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y}" dy="4">{text}</text>'
        )
    for x_value, text in ticks(x_scale.least, x_scale.most, whole=whole):
        x = x_scale.at(x_value)
        drawn.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{HEIGHT - BOTTOM + 15}">'
            f"{text}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(
        f'<text class="tick" text-anchor="middle" x="{middle}" y="{HEIGHT - 4}">'
        f"{escape(x_name)}</text>"
    )
    drawn.append(f'<text class="tick" x="4" y="12">{escape(y_name)}</text>')
    return "".join(drawn)


def _svg(drawn: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(drawn)}</svg>"
    )
