"""Charts as inline SVG: curves over steps, and a scatter with its frontier. No scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["Dot", "Line", "curves", "scatter", "short"]

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 12, 34
MAX_POINTS = 400
"""Of a longer curve each point stands for several steps: the highest of them."""


class Line(NamedTuple):
    """A curve: (x, y) points in order, and those among them that are marked. One that stands
    back is drawn thin and grey, under the others."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float], ...] = ()
    stands_back: bool = False


class Dot(NamedTuple):
    """A point of a scatter. A hollow one is not to be compared with the others."""

    name: str
    colour: str
    x: float
    y: float
    told: str
    hollow: bool = False


class _Scale(NamedTuple):
    least: float
    most: float
    start: float
    end: float

    def at(self, value: float) -> str:
        span = (self.most - self.least) or 1.0
        return f"{self.start + (value - self.least) / span * (self.end - self.start):.1f}"


def short(value: float) -> str:
    """A number as an axis shows it: 1.2M, 340k, 0.85."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def curves(lines: Sequence[Line], *, limit: float | None, x_name: str, y_name: str) -> str:
    """*lines* over one another, with *limit* as a dashed line; "" without a point."""
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    top = max([y for _, y in points] + ([limit] if limit else []))
    x_scale = _Scale(0, max(x for x, _ in points), LEFT, WIDTH - RIGHT)
    y_scale = _Scale(0, top * 1.05, HEIGHT - BOTTOM, TOP)
    drawn = [_axes(x_scale, y_scale, x_name, y_name)]
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
    """*dots*, and a line through those that are *best*; "" without a dot."""
    if not dots:
        return ""
    # What is hollow may lie far off, and would press the others into a corner.
    seen = [dot for dot in dots if not dot.hollow] or list(dots)
    x_scale = _spread([dot.x for dot in seen], LEFT + 8, WIDTH - RIGHT - 8)
    y_scale = _spread([dot.y for dot in seen], HEIGHT - BOTTOM - 8, TOP + 8)
    drawn = [_axes(x_scale, y_scale, x_name, y_name)]
    if best:
        path = " ".join(f"{x_scale.at(x)},{y_scale.at(y)}" for x, y in sorted(best))
        drawn.append(f'<polyline class="frontier" points="{path}"/>')
    for dot in dots:
        inside = x_scale.least <= dot.x <= x_scale.most and y_scale.least <= dot.y <= y_scale.most
        if not inside:
            continue
        x, y = x_scale.at(dot.x), y_scale.at(dot.y)
        fill = "none" if dot.hollow else dot.colour
        drawn.append(
            f'<circle r="4.5" cx="{x}" cy="{y}" fill="{fill}" stroke="{dot.colour}">'
            f"<title>{escape(dot.told)}</title></circle>"
            f'<text class="name" x="{float(x) + 6:.1f}" y="{float(y) - 5:.1f}">'
            f"{escape(dot.name)}</text>"
        )
    return _svg(drawn, f"{y_name} against {x_name}")


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


def _axes(x_scale: _Scale, y_scale: _Scale, x_name: str, y_name: str) -> str:
    drawn = []
    for number in range(5):
        x_value = x_scale.least + (x_scale.most - x_scale.least) * number / 4
        y_value = y_scale.least + (y_scale.most - y_scale.least) * number / 4
        x, y = x_scale.at(x_value), y_scale.at(y_value)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        drawn.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y}" dy="4">'
            f"{short(y_value)}</text>"
        )
        drawn.append(
            f'<text class="tick" text-anchor="middle" x="{x}" y="{HEIGHT - BOTTOM + 15}">'
            f"{short(x_value)}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(
        f'<text class="tick" text-anchor="middle" x="{middle}" y="{HEIGHT - 4}">'
        f"{escape(x_name)}</text>"
    )
    drawn.append(f'<text class="tick" x="4" y="{TOP}">{escape(y_name)}</text>')
    return "".join(drawn)


def _svg(drawn: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(drawn)}</svg>"
    )
