"""Structured log events with session, turn, step and attempt. Message content only if configured.

Events go through structlog to the standard library's logger ``llmsession``. So an embedding program
decides with its own logging configuration which events are kept. A program that configures
structlog itself passes ``structlog.get_logger()`` to the manager.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from llmsession.errors import contained
from llmsession.turns.machine import Turn

__all__ = ["SessionLog", "default_logger", "log_bug", "log_trouble"]

_STANDARD = logging.getLogger("llmsession")
_STANDARD.addHandler(logging.NullHandler())


def default_logger() -> Any:
    """A structlog logger that writes to the standard logger ``llmsession``."""
    return structlog.wrap_logger(
        _STANDARD,
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def log_bug(logger: Any | None, name: str, error: BaseException, **fields: Any) -> None:
    """Log *error*, which concerns no single session, at level error with its traceback."""
    with _ignored():
        (default_logger() if logger is None else logger).error(name, exc_info=error, **fields)


def log_trouble(logger: Any | None, name: str, **fields: Any) -> None:
    """Log a problem that concerns no single session, at level warning."""
    with _ignored():
        (default_logger() if logger is None else logger).warning(name, **fields)


@contextmanager
def _ignored() -> Iterator[None]:
    """Ignore what the logger raises: it may be foreign code, and logging must not end a session."""
    try:
        yield
    except BaseException as error:
        contained(error)


class SessionLog:
    """The logger of one session. The field ``content`` is logged only if ``log_content`` is True.

    If the logger raises, the event is lost and nothing else happens.
    """

    __slots__ = ("_bound", "_content", "_session", "_standard")

    def __init__(self, logger: Any | None, session: str, *, content: bool) -> None:
        self._standard = logger is None
        # The standard logger is bound when it is first needed, because most sessions log nothing.
        self._bound = None if logger is None else logger.bind(session=session)
        self._session = session
        self._content = content

    @property
    def _logger(self) -> Any:
        if self._bound is None:
            self._bound = default_logger().bind(session=self._session)
        return self._bound

    @property
    def is_on(self) -> bool:
        """Is anything done with an event?"""
        return not self._standard or _STANDARD.isEnabledFor(logging.INFO)

    def event(self, name: str, turn: Turn | None = None, **fields: Any) -> None:
        """Log an event at level info. *content* is message content as JSON bytes."""
        if self.is_on:
            with _ignored():
                self._logger.info(name, **_bound(turn), **self._allowed(fields))

    def trouble(self, name: str, turn: Turn | None = None, **fields: Any) -> None:
        """Log a problem for the operator at level warning."""
        with _ignored():
            self._logger.warning(name, **_bound(turn), **self._allowed(fields))

    def bug(self, name: str, error: BaseException) -> None:
        """Log a bug with its traceback at level error."""
        with _ignored():
            self._logger.error(name, exc_info=error)

    def _allowed(self, fields: dict[str, Any]) -> dict[str, Any]:
        said = fields.pop("content", None)
        if said is not None and self._content:
            fields["content"] = bytes(said).decode()
        return fields


def _bound(turn: Turn | None) -> dict[str, Any]:
    if turn is None:
        return {}
    return {"turn": turn.number, "step": turn.step, "attempt": turn.tried}
