"""The garbage collector of a service's process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from llmsession.cli.common.collector import THRESHOLDS, seldom_full_collections


@pytest.fixture(autouse=True)
def what_was_imported_is_frozen_again() -> Iterator[None]:
    """As tests/conftest.py froze it. Otherwise each full collection in the tests that follow would
    look at half a million objects."""
    yield
    gc.freeze()


def test_a_service_collects_seldom_and_leaves_the_process_as_it_was() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), seldom_full_collections():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > frozen
        raise ZeroDivisionError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
