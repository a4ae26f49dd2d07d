"""Transports are asyncio's, and their sockets are real."""

from __future__ import annotations

from typing import Any

import pytest

from tests.steady_time import steady_backend


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return steady_backend("asyncio")
