"""How far two sequences are the same."""

from __future__ import annotations

import pytest

from llmsession.compaction.view.prefix import shared_prefix

A, B, C, D = object(), object(), object(), object()


@pytest.mark.parametrize(
    ("known", "now", "shared"),
    [
        ((), (), 0),
        ((), (A,), 0),
        ((A, B), (A, B), 2),
        ((A, B), (A, B, C), 2),
        ((A, B, C), (A, B), 2),
        ((A, B, C), (A, D, C), 1),
        ((A, B), (D, B, C), 0),
        ((A,), (), 0),
    ],
)
def test_the_prefix_ends_where_another_object_stands(
    known: tuple[object, ...], now: tuple[object, ...], shared: int
) -> None:
    assert shared_prefix(known, now) == shared
    assert shared_prefix(list(known), list(now)) == shared
