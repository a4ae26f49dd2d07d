"""A recorded conversation's context over its requests, with ``balanced`` and without: an SVG.

    python -m benchmarks.plot FILE [WINDOW_TOKENS] > docs/pictures/compaction.svg

It holds figures only. Of several conversations in FILE the one with most requests is drawn. On
stderr: a line of figures. Exit code 2: the file cannot be read, or has no request.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.policies import Balanced, make_policy
from llmsession.errors import SessionError
from llmsession.lab.charts import Line, curves
from llmsession.lab.comparing import Subject, ready
from llmsession.lab.recording import window_of
from llmsession.lab.replaying import Replayed, replay
from llmsession.transcripts import read

__all__ = ["main"]

WINDOW_TOKENS, MIN_TOKENS = 200_000, 1_000
NO_LIMIT_TOKENS = 1_000_000_000
WITH, WITHOUT = "#1f6fb4", "#c4620e"
STYLE = (
    "<style>svg{font:11px system-ui,sans-serif;background:#fff}polyline{fill:none;stroke-width:1.6}"
    "polyline.back{stroke:#b9bec3;stroke-width:1}line.grid{stroke:#e3e5e8;stroke-width:.6}"
    "line.limit{stroke:#6b7075;stroke-dasharray:5 4}circle.mark{stroke:#fff;stroke-width:.8}"
    "text{fill:#6b7075}</style>"
)
"""The charts' own styles are those of the lab's report; this file stands alone."""


def _replayed(subject: Subject, policy: Policy, window_tokens: int) -> Replayed:
    window = window_of(subject.recording, window_tokens)
    return replay(subject.recording, window, policy, subject.needs)


def _line(name: str, colour: str, replayed: Replayed) -> Line:
    steps = [(float(at), float(step.tokens)) for at, step in enumerate(replayed.steps, 1)]
    marks = [at for at, step in enumerate(replayed.steps) if step.rewritten]
    return Line(name, colour, tuple(steps), tuple(steps[at] for at in marks))


def plot(subject: Subject, window_tokens: int) -> tuple[str, str]:
    """The chart of *subject* in a window of so many tokens, and its figures in a line."""
    policy = Balanced()
    kept = _replayed(subject, policy, window_tokens)
    whole = _replayed(subject, make_policy("full_history"), NO_LIMIT_TOKENS)
    budget = window_of(subject.recording, window_tokens).sizes.budget_tokens
    last = float(kept.requests)
    marks = [
        Line(f"{share:.0%} of the budget", "", ((1.0, share * budget), (last, share * budget)))
        for share in (policy.threshold, policy.low)
    ]
    lines = [
        *(mark._replace(stands_back=True) for mark in marks),
        _line("without compaction", WITHOUT, whole),
        _line("balanced", WITH, kept),
    ]
    drawn = curves(lines, limit=float(budget), x_name="request", y_name="context, tokens")
    legend = "".join(
        f'<text x="76" y="{y}" style="fill:{colour}">{name}</text>'
        for y, colour, name in ((34, WITHOUT, "without compaction"), (49, WITH, "balanced"))
    )
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    drawn = drawn.replace(">", f">{STYLE}", 1).replace("</svg>", f"{legend}</svg>")
    told = (
        f"{kept.requests} requests, {kept.rewrites} rewrites, at most {kept.peak_context:,} of"
        f" {budget:,} tokens, {whole.peak_context:,} without; prompts cost"
        f" {kept.spent.cost / whole.spent.cost:.0%} of what they cost without"
    )
    return drawn, told


def main(arguments: list[str]) -> int:
    window = arguments[1] if len(arguments) == 2 else str(WINDOW_TOKENS)
    if len(arguments) not in (1, 2) or not window.isdecimal() or int(window) < MIN_TOKENS:
        told = f"usage: python -m benchmarks.plot FILE [WINDOW_TOKENS, at least {MIN_TOKENS:,}]"
        print(told, file=sys.stderr)
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
    drawn, told = plot(longest, int(window))
    print(drawn)
    print(told, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
