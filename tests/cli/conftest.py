"""Running ``llmsession``."""

from __future__ import annotations

from functools import partial

import pytest

from tests.cli import stores
from tests.cli.stores import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """``run("list", "--json")``"""
    return partial(stores.run, capsys)
