"""Asking the user whether something is meant."""

from __future__ import annotations

import sys

from llmsession.errors import Refused

from .terminal import complain

__all__ = ["confirm"]


def confirm(question: str, otherwise: str) -> None:
    """Ask *question* on stderr. Raises Refused, which says *otherwise*, unless somebody says
    yes."""
    complain(f"{question} [y/N] ", end="")
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # nobody is there
        complain()
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused(otherwise)
