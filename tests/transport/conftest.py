"""Transports are asyncio's, and their sockets are real."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession.transport.grpc import server
from llmsession.transport.server.limits import Limits
from tests.steady_time import steady_backend


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return steady_backend("asyncio")


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_say_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process or gRPC's threads answer, a client's ten seconds are real ones."""
    monkeypatch.setattr("llmsession.transport.client.link.HELLO_S", 100.0)


@pytest.fixture(autouse=True)
def a_busy_machine_may_take_long_to_answer_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's threads keep the time of handshakes and pings by the real clock, whatever the loop's
    says. What the service does at these limits does not need them."""
    options = server.server_options

    def patient(limits: Limits) -> list[tuple[str, Any]]:
        return options(msgspec.structs.replace(limits, hello_s=100.0, keepalive_s=100.0))

    monkeypatch.setattr(server, "server_options", patient)
