"""Prints violated invariants on stderr, so that JSON on stdout stays whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.recording.violation import Violation

__all__ = ["print_violations"]

MAX_PRINTED = 20


def print_violations(violations: Sequence[Violation], *, of: str) -> None:
    """Print each violation, and the entries that prove the one with the shortest proof. *of* says
    where they were found."""
    plural = "" if len(violations) == 1 else "s"
    print(f"{len(violations)} violation{plural} {of}:", file=sys.stderr)
    for violation in violations[:MAX_PRINTED]:
        print(f"  {violation}", file=sys.stderr)
    if len(violations) > MAX_PRINTED:
        print(f"  and {len(violations) - MAX_PRINTED} more", file=sys.stderr)
    shortest = min(violations, key=_size)
    print(f"shortest proof ({shortest}):", file=sys.stderr)
    for line in encode_lines(shortest.proof):
        print(f"  {line.decode().rstrip()}", file=sys.stderr)


def _size(violation: Violation) -> int:
    return sum(map(len, encode_lines(violation.proof)))
