"""Asks the user for confirmation."""

from __future__ import annotations

import sys

from llmsession.errors import Refused

from .terminal import complain

__all__ = ["confirm"]


def confirm(question: str, otherwise: str) -> None:
    """Ask *question* on stderr and read the answer from stdin. Raises Refused with the message
    *otherwise* unless the answer is ``y`` or ``yes``."""
    complain(f"{question} [y/N] ", end="")
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # end of input: nobody pressed Enter, so end the line here
        complain()
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused(otherwise)
