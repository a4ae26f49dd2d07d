from __future__ import annotations

from typing import get_args

import pytest

from llmsession.turns import events as e
from llmsession.turns.request import StepTag
from tests.turns.lives import UNTAGGED_EVENTS


def test_every_event_and_effect_is_public() -> None:
    kinds = {kind.__name__ for kind in (*e.Event.__subclasses__(), *e.Effect.__subclasses__())}
    assert kinds | {"Event", "Effect", "AnyEffect"} == set(e.__all__)


def test_any_effect_is_every_effect() -> None:
    assert set(get_args(e.AnyEffect)) == set(e.Effect.__subclasses__())


@pytest.mark.parametrize("event", UNTAGGED_EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_has_no_tag_unless_it_reports_work(event: e.Event) -> None:
    assert event.tag is None


def test_an_effect_always_carries_the_tag_of_its_work() -> None:
    for effect in e.Effect.__subclasses__():
        with pytest.raises(TypeError, match=r"(?i)missing"):
            effect()  # type: ignore[call-arg]  # that is the point
    assert e.StopWork(tag=StepTag(1, 1, 1)).tag == StepTag(1, 1, 1)
