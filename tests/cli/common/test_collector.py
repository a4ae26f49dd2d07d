"""The garbage collector of a service's process."""

from __future__ import annotations

import gc

import pytest

from llmsession.cli.common.collector import THRESHOLDS, seldom_full_collections


def test_a_service_collects_seldom_and_leaves_the_process_as_it_was() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with pytest.raises(ZeroDivisionError), seldom_full_collections():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > frozen
        raise ZeroDivisionError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
