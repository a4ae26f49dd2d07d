"""Print violations on stderr, so that the JSON on stdout stays whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.recording.violation import Violation

__all__ = ["print_breaches"]

MAX_TOLD = 20


def print_breaches(breaches: Sequence[Violation], *, of: str) -> None:
    """Each breach, and the entries that show the one with the shortest proof. *of* says where they
    were found."""
    number = f"{len(breaches)} breach" if len(breaches) == 1 else f"{len(breaches)} breaches"
    print(f"{number} {of}:", file=sys.stderr)
    for breach in breaches[:MAX_TOLD]:
        print(f"  {breach}", file=sys.stderr)
    if len(breaches) > MAX_TOLD:
        print(f"  and {len(breaches) - MAX_TOLD} more", file=sys.stderr)
    shortest = min(breaches, key=_size)
    print(f"the shortest record that shows one ({shortest}):", file=sys.stderr)
    for line in encode_lines(shortest.shown):
        print(f"  {line.decode().rstrip()}", file=sys.stderr)


def _size(breach: Violation) -> int:
    return sum(map(len, encode_lines(breach.shown)))
