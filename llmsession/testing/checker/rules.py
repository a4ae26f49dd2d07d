"""The walk of the checker along a log, as its rules see it."""

from __future__ import annotations

from llmsession.session.log.state import SessionState
from llmsession.turns import records as r

__all__ = ["Rules"]


class Rules:
    """Rules that walk along a log: asked before and after each record is folded.
    A class of rules defines the methods in which it checks something."""

    def before(self, state: SessionState, record: r.Record) -> None:
        """*record* is next; *state* is the fold of all before it."""

    def after(self, state: SessionState, record: r.Record) -> None:
        """*record* was folded into *state*."""

    def end(self, state: SessionState) -> None:
        """The log is over."""
