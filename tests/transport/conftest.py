"""Transports are asyncio's, and their sockets are real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.steady_time import steady_backend


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return steady_backend("asyncio")


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_say_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process or gRPC's threads answer, a client's ten seconds are real ones."""
    monkeypatch.setattr("llmsession.transport.client.link.HELLO_S", 100.0)
