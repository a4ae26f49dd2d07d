"""The count by characters, which always works."""

from __future__ import annotations

import msgspec
import pytest

from llmsession.providers.counting.counts import (
    ESTIMATE_ACCURACY,
    CharacterCounter,
    Count,
    estimate_by_length,
    request_bytes,
)
from llmsession.providers.counting.encodings import OWN_FIT
from llmsession.providers.counting.stepping import Stepper
from llmsession.turns.request import Profile, RequestMessage

from ..asked import ask, profile_of

INLINE = Stepper(threads=False)


async def test_every_part_is_estimated_for_itself_and_rounded_up() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 5000}}
    request = ask("abc", [image], system="s", tools=({"n": 1},))
    count = await CharacterCounter(profile_of, stepper=INLINE).count(request)
    assert count.input_tokens == 2 + 100 + 1 + 4 + OWN_FIT.tools + 2 * 3 + 3
    assert (count.method, count.accuracy) == ("estimate", ESTIMATE_ACCURACY)


async def test_a_body_that_is_no_json_is_estimated_too() -> None:
    broken = RequestMessage("user", msgspec.Raw(b"no json"))
    request = msgspec.structs.replace(ask("x"), messages=(broken,))
    count = await CharacterCounter(profile_of, stepper=INLINE).count(request)
    assert count.input_tokens == 4 + 3 + 3


@pytest.mark.real_time
async def test_a_long_request_is_estimated_the_same_in_a_thread() -> None:
    request = ask(*("word " * 20_000 for _ in range(10)))
    there = await CharacterCounter(profile_of).count(request)
    here = await CharacterCounter(profile_of, stepper=INLINE).count(request)
    assert there.input_tokens == here.input_tokens == 10 * (50_000 + 3) + 3


def test_the_length_is_rounded_up() -> None:
    lengths = [estimate_by_length("x" * n, Profile(chars_per_token=2.0)) for n in (0, 1, 2, 3)]
    assert lengths == [0, 1, 1, 2]


def test_the_bytes_of_a_request_are_those_of_what_is_counted() -> None:
    assert request_bytes(ask("hi", system="abc", tools=({"n": 1},))) == len(
        '[{"type":"text","text":"hi"}]' + "abc" + '{"n":1}'
    )


def test_a_count_is_a_value_with_the_six_fields() -> None:
    assert Count.__struct_fields__ == (
        "input_tokens", "estimated_output_tokens", "method", "accuracy", "cached", "latency_ms",
    )  # fmt: skip
    count = Count(input_tokens=1, estimated_output_tokens=1, method="api", accuracy=0.0)
    with pytest.raises(AttributeError):
        count.cached = True  # type: ignore[misc]  # what is tested
