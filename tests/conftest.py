"""Fixtures that more than one room's tests use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.virtual_time import virtual_backend

pytest.register_assert_rewrite(
    "llmsession.testing.store_contract",
    "llmsession.testing.shared_records_contract",
    "llmsession.testing.store_acts",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "real_time: runs with the real clock, because it uses threads or sockets"
    )


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Every async test runs on both, in virtual time unless it is marked ``real_time``."""
    if request.node.get_closest_marker("real_time"):
        return request.param, {}
    return virtual_backend(request.param)


@pytest.fixture(autouse=True)
def nothing_of_ours_blocks_the_event_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """A call in llmsession that blocks an asyncio loop raises. On trio nothing is detected."""
    if "anyio_backend" not in request.fixturenames:
        yield
        return
    with blockbuster_ctx("llmsession"):
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The recorded conversations, in a folder beside the checkout; they are no part of it."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded conversations: {folder} is not a folder")
    return folder
