"""Every error of ours has a status, and comes back from it as itself."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from llmsession import errors as e
from llmsession.errors import SessionError
from llmsession.transport.grpc.errors import error_of, refusal, status_code
from llmsession.transport.wire.errors import ERRORS, to_wire


class Failed:
    """What grpc.aio raises, as far as it is read."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def code(self) -> Any:
        return self._status.code

    def details(self) -> str:
        return str(self._status.details)

    def trailing_metadata(self) -> Any:
        return self._status.trailing_metadata


def came_back(error: SessionError) -> SessionError | None:
    failed: Any = Failed(refusal(to_wire(error), type(error)))
    return error_of(failed)


def test_every_error_has_a_status_and_none_is_ok_or_unknown() -> None:
    for kind in ERRORS.values():
        assert status_code(kind) not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN)
    named = {
        e.SessionNotFound: grpc.StatusCode.NOT_FOUND,
        e.SessionExists: grpc.StatusCode.ALREADY_EXISTS,
        e.InvalidConfig: grpc.StatusCode.INVALID_ARGUMENT,
        e.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
        e.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
        e.SessionError: grpc.StatusCode.INTERNAL,
        e.StoreDamaged: grpc.StatusCode.DATA_LOSS,
    }
    assert {kind: status_code(kind) for kind in named} == named


@pytest.mark.parametrize(
    "error",
    [
        e.SessionNotFound("s"),
        e.HeadMoved("u1", None),
        e.Overloaded("later", retry_after_s=0.25),
        e.RecordDamaged("s", 3, "cut"),
        e.UnknownRecord("s", 3, "turn.exploded"),
        e.StoreError("gone", committed=None),
        e.Unauthenticated("no"),
        e.BudgetExhausted("spent", whose="tenant", name="a", unit="tokens", limit=1, spent=2),
        e.ProviderError("slow down", kind="retryable", delay_s=2.0, status=429),
    ],
)
def test_an_error_comes_back_as_it_was(error: SessionError) -> None:
    back = came_back(error)
    assert type(back) is type(error)
    assert (str(back), vars(back)) == (str(error), vars(error))


def test_a_long_error_fits_into_the_trailers() -> None:
    error = e.UnknownToolCall("x" * 100_000)
    status = refusal(to_wire(error), type(error))
    ((_, packed),) = status.trailing_metadata
    assert len(packed) + len(status.details) < 4096
    assert isinstance(came_back(error), e.UnknownToolCall)


def test_what_is_not_ours_is_not_taken_for_it() -> None:
    class Plain(Failed):
        def trailing_metadata(self) -> Any:
            return ()

    failed: Any = Plain(refusal(to_wire(e.SessionNotFound("s")), e.SessionNotFound))
    assert error_of(failed) is None
