"""A recorded conversation's context over its requests, with ``balanced`` and without: an SVG.

    python -m benchmarks.plot FILE [WINDOW_TOKENS] > picture.svg
    python -m benchmarks.plot --figures FILE [WINDOW_TOKENS] > docs/pictures/compaction.json

It holds figures only. Of several conversations in FILE the one with most requests is drawn. With
``--figures`` the figures are printed as JSON, and ``python -m docs.pictures.draw`` draws them: so
the picture of the docs needs no recording. On stderr: a line of figures. Exit code 2: the file
cannot be read, or has no request.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from docs.pictures.canvas import BACKGROUND, COLOURS
from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import Balanced, make_policy
from llmsession.errors import SessionError
from llmsession.lab.charts import HEIGHT, WIDTH, Line, curves
from llmsession.lab.comparing import Subject, ready
from llmsession.lab.recording import window_of
from llmsession.lab.replaying import Replayed, replay
from llmsession.transcripts import read

__all__ = ["Figures", "committed_plot", "figures_of", "main", "plot"]

WINDOW_TOKENS, MIN_TOKENS = 200_000, 1_000
NO_LIMIT_TOKENS = 1_000_000_000
FIGURES = Path(__file__).parents[1] / "docs" / "pictures" / "compaction.json"
COLOUR_NAMES = {"with": "blue", "without": "orange"}
"""Placeholders for colours, and the names that the pictures of the docs have for them."""
STYLE = (
    f"<style>{COLOURS}.paper{{fill:var(--paper);stroke:var(--edge)}}"
    "text{font:11px system-ui,'DejaVu Sans',sans-serif;fill:var(--soft)}"
    "polyline{fill:none;stroke-width:1.8}polyline.back{stroke:var(--line);stroke-width:1}"
    "line.grid{stroke:var(--grid);stroke-width:.8}"
    "line.limit{stroke:var(--soft);stroke-dasharray:5 4}"
    "circle.mark{stroke:var(--paper);stroke-width:1}</style>"
)
"""The charts' own styles are those of the lab's report; this file stands alone."""


class Figures(msgspec.Struct, frozen=True):
    """What is drawn: tokens of each request, in order, and the indexes of requests before which
    ``balanced`` rewrote the context."""

    budget_tokens: int
    threshold: float
    low: float
    without: tuple[int, ...]
    balanced: tuple[int, ...]
    rewrites: tuple[int, ...]


def _replayed(subject: Subject, policy: Policy, window_tokens: int) -> Replayed:
    window = window_of(subject.recording, window_tokens)
    return replay(subject.recording, window, policy, subject.needs)


def figures_of(subject: Subject, window_tokens: int) -> tuple[Figures, str]:
    """The figures of *subject* in a window of so many tokens, and a line that sums them up."""
    policy = Balanced()
    kept = _replayed(subject, policy, window_tokens)
    whole = _replayed(subject, make_policy("full_history"), NO_LIMIT_TOKENS)
    figures = Figures(
        budget_tokens=window_of(subject.recording, window_tokens).sizes.budget_tokens,
        threshold=policy.threshold,
        low=policy.low,
        without=tuple(step.tokens for step in whole.steps),
        balanced=tuple(step.tokens for step in kept.steps),
        rewrites=tuple(index for index, step in enumerate(kept.steps) if step.rewritten),
    )
    summary = (
        f"{kept.requests} requests, {kept.rewrites} rewrites, at most {kept.peak_context:,} of"
        f" {figures.budget_tokens:,} tokens, {whole.peak_context:,} without; prompts cost"
        f" {kept.spent.cost / whole.spent.cost:.0%} of what they cost without"
    )
    return figures, summary


def _line(name: str, colour: str, tokens: tuple[int, ...], marks: tuple[int, ...] = ()) -> Line:
    points = tuple((float(number), float(size)) for number, size in enumerate(tokens, 1))
    return Line(name, colour, points, tuple(points[index] for index in marks))


def plot(figures: Figures) -> str:
    """The chart of *figures*: it reads on a light and on a dark page."""
    budget, last = figures.budget_tokens, float(len(figures.balanced))
    marks = [
        Line(f"{share:.0%} of the budget", "", ((1.0, share * budget), (last, share * budget)))
        for share in (figures.threshold, figures.low)
    ]
    lines = [
        *(mark._replace(stands_back=True) for mark in marks),
        _line("without compaction", "without", figures.without),
        _line("balanced", "with", figures.balanced, figures.rewrites),
    ]
    chart = curves(lines, limit=float(budget), x_name="request", y_name="context, tokens")
    for name, colour in COLOUR_NAMES.items():
        for attribute in ("stroke", "fill"):
            chart = chart.replace(f'{attribute}="{name}"', f'style="{attribute}:var(--{colour})"')
    legend = "".join(
        f'<text x="84" y="{y}" style="fill:var(--{colour})">{name}</text>'
        for y, colour, name in (
            (44, "orange", "without compaction"),
            (59, "blue", "balanced; a dot where the context is rewritten"),
        )
    )
    description = (
        f"Without compaction the context of a recorded conversation of {len(figures.without)} "
        f"requests grows to {max(figures.without):,} tokens, beyond the budget of {budget:,}. "
        f"With the policy balanced it is rewritten {len(figures.rewrites)} times and stays below "
        f"{max(figures.balanced):,} tokens."
    )
    width, height = WIDTH + 16, HEIGHT + 16
    inner = chart.partition(">")[2].removesuffix("</svg>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-labelledby="title description">'
        '<title id="title">A context over its requests, with and without compaction</title>'
        f'<desc id="description">{description}</desc>{STYLE}'
        f"{BACKGROUND.format(-7.5, -7.5, width - 1, height - 1)}{inner}{legend}</svg>\n"
    )


def committed_plot() -> str:
    """The picture of the docs, from the figures that are committed beside it."""
    return plot(msgspec.json.decode(FIGURES.read_bytes(), type=Figures))


def main(arguments: list[str]) -> int:
    wants_figures = arguments[:1] == ["--figures"]
    arguments = arguments[wants_figures:]
    window = arguments[1] if len(arguments) == 2 else str(WINDOW_TOKENS)
    if len(arguments) not in (1, 2) or not window.isdecimal() or int(window) < MIN_TOKENS:
        usage = (
            f"usage: python -m benchmarks.plot [--figures] FILE [WINDOW_TOKENS, {MIN_TOKENS:,}..]"
        )
        print(usage, file=sys.stderr)
        return 2
    path = Path(arguments[0])
    try:
        subjects = ready(read(path.read_bytes()))
    except (OSError, SessionError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(f"{path}: {told}", file=sys.stderr)
        return 2
    if not subjects:
        print(f"{path}: there is no request in it", file=sys.stderr)
        return 2
    longest = max(subjects, key=lambda subject: len(subject.recording.asks))
    figures, summary = figures_of(longest, int(window))
    print(msgspec.json.encode(figures).decode() if wants_figures else plot(figures), end="")
    print(summary, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
