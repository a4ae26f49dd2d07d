"""Observers of all sessions of a manager, for metrics and traces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from llmsession.errors import contained
from llmsession.turns.records import ModelRequest, Record
from llmsession.turns.reply import Reply
from llmsession.turns.request import Request
from llmsession.turns.spending.prices import PriceTable

from .session_log import log_bug

__all__ = [
    "DeletionObserver",
    "Observers",
    "SessionObserver",
    "SnapshotObserver",
    "TakeoverObserver",
]


class SessionObserver(Protocol):
    """Receives events from all sessions of a manager: ``SessionManager(observers=...)``.

    The methods are called in the event loop's thread and must not block. What they raise is logged
    and has no other effect.
    """

    def recorded(self, session: str, record: Record) -> None:
        """*record* is durable and published. Records that recovery writes are not reported."""
        ...

    def requested(
        self, session: str, turn: int, request: Request, *, tokens: int, budget_tokens: int
    ) -> None:
        """*request*, of about *tokens* tokens, is being sent to the model for *turn*."""
        ...

    def began(self, session: str, turn: int) -> None:
        """The first delta of the reply to the turn's newest request has arrived."""
        ...

    def ended(
        self,
        session: str,
        turn: int,
        spent: ModelRequest,
        *,
        provider: str,
        stop_reason: str | None,
    ) -> None:
        """The turn's newest request has ended.

        *stop_reason* is the stop reason of the reply; None if the reply broke off or was stopped.
        """
        ...

    def charged(self, session: str, spent: ModelRequest, cost_nano_usd: int | None) -> None:
        """A request of a turn, or for a summary, was charged.

        *cost_nano_usd* is in nano-dollars (10^-9 USD); None if the model has no price.
        """
        ...


@runtime_checkable
class DeletionObserver(Protocol):
    """A method that an observer may have in addition to those of ``SessionObserver``."""

    def deleted(self, session: str, limit: str) -> None:
        """Retention deleted *session* because of *limit*.

        ``idle``: it had no new record for too long. ``sessions``: its tenant had more sessions than
        it may keep. What retention forgets within a session is ``recorded`` instead.
        """
        ...


@runtime_checkable
class TakeoverObserver(Protocol):
    """A method that an observer may have in addition to those of ``SessionObserver``."""

    def taken(self, session: str) -> None:
        """Another owner took *session*, which was not handed over to it."""
        ...


@runtime_checkable
class SnapshotObserver(Protocol):
    """A method that an observer may have in addition to those of ``SessionObserver``."""

    def snapshot_ignored(self, session: str, why: str) -> None:
        """The snapshot of *session* could not be used, for the reason *why*. Its whole log is
        folded.
        """
        ...


class Observers:
    """Calls every observer, and logs what they raise."""

    __slots__ = ("_logger", "_observers", "_prices")

    def __init__(
        self, observers: Sequence[SessionObserver], prices: PriceTable, logger: Any | None
    ) -> None:
        self._observers = tuple(observers)
        self._prices = prices
        self._logger = logger

    @property
    def is_on(self) -> bool:
        """Is there any observer?"""
        return bool(self._observers)

    def recorded(self, session: str, record: Record) -> None:
        """See ``SessionObserver``."""
        for observer in self._observers:
            with self._guarded():
                observer.recorded(session, record)

    def deleted(self, session: str, limit: str) -> None:
        """See ``DeletionObserver``."""
        for observer in self._observers:
            if isinstance(observer, DeletionObserver):
                with self._guarded():
                    observer.deleted(session, limit)

    def taken(self, session: str) -> None:
        """See ``TakeoverObserver``."""
        for observer in self._observers:
            if isinstance(observer, TakeoverObserver):
                with self._guarded():
                    observer.taken(session)

    def snapshot_ignored(self, session: str, why: str) -> None:
        """See ``SnapshotObserver``."""
        for observer in self._observers:
            if isinstance(observer, SnapshotObserver):
                with self._guarded():
                    observer.snapshot_ignored(session, why)

    def requested(
        self, session: str, turn: int, request: Request, tokens: int, budget_tokens: int
    ) -> None:
        """See ``SessionObserver``."""
        for observer in self._observers:
            with self._guarded():
                observer.requested(
                    session, turn, request, tokens=tokens, budget_tokens=budget_tokens
                )

    def began(self, session: str, turn: int) -> None:
        """See ``SessionObserver``."""
        for observer in self._observers:
            with self._guarded():
                observer.began(session, turn)

    def ended(
        self, session: str, turn: int, spent: ModelRequest, provider: str, reply: Reply | None
    ) -> None:
        """See ``SessionObserver``; *reply* is None if it is not complete."""
        stop_reason = reply.stop_reason if reply is not None else None
        for observer in self._observers:
            with self._guarded():
                observer.ended(session, turn, spent, provider=provider, stop_reason=stop_reason)
        self.charged(session, (spent,))

    def charged(self, session: str, requests: Iterable[ModelRequest]) -> None:
        """*requests* were charged for."""
        if self._observers:
            for spent in requests:
                cost = self._prices.cost(spent.model, spent.usage)
                for observer in self._observers:
                    with self._guarded():
                        observer.charged(session, spent, cost)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # an observer is foreign code
            log_bug(self._logger, "observer.failed", contained(error))
