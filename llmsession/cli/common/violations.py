"""Prints violated invariants. They go to stderr, so that JSON on stdout stays valid."""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.testing.recording.entries import encode_lines
from llmsession.testing.recording.violation import Violation

from .terminal import complain

__all__ = ["print_violations"]

MAX_PRINTED = 20


def print_violations(violations: Sequence[Violation], *, of: str) -> None:
    """Print each violation, and the recorded entries that prove the one with the shortest proof.
    *of* says where the violations were found."""
    plural = "" if len(violations) == 1 else "s"
    complain(f"{len(violations)} violation{plural} {of}:")
    for violation in violations[:MAX_PRINTED]:
        complain(f"  {violation}")
    if len(violations) > MAX_PRINTED:
        complain(f"  and {len(violations) - MAX_PRINTED} more")
    shortest = min(violations, key=_size)
    complain(f"shortest proof ({shortest}):")
    for line in encode_lines(shortest.proof):
        complain(f"  {line.decode().rstrip()}")


def _size(violation: Violation) -> int:
    return sum(map(len, encode_lines(violation.proof)))
