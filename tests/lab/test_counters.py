from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmsession.lab.counters import find_tiktoken, predictions
from llmsession.lab.growth import Growth, growths
from llmsession.providers.counting.encodings import Encodings
from llmsession.turns.request import Profile
from tests.lab.recorded import Recorded, call, result

LONG = "the quick brown fox jumps over the lazy dog " * 50


def recorded(model: str = "claude-opus-4-5", *, output: int = 0, steps: int = 1) -> list[Growth]:
    built, prompt = Recorded(model).ask(), 10_000
    for at in range(steps):
        built.reply([call(f"c{at}", at=LONG)], prompt, output).answer(result(f"c{at}", LONG))
        prompt += 2_000
    return growths(built.reply("done", prompt).done())[0]


def words(text: str) -> int:
    return len(text.split())


def test_plain_counters_count_what_can_be_seen() -> None:
    (said,) = predictions("chars4", recorded())
    assert said == (len("look") + len("at") + 4 + len(LONG)) // 4 + len(LONG) // 4 + 2 * 4
    (tokens,) = predictions("tiktoken", recorded(), words)
    assert tokens == 2 + 2 * words(LONG) + 2 * 4


def test_images_cost_the_same_in_every_counter() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 900}}
    built = Recorded().ask().reply([call("c1")], 1_000).answer(result("c1"), image)
    (growth,), _ = growths(built.reply("done", 4_000).done())
    flat = Profile().image_tokens
    for counter in ("chars4", "tiktoken", "estimate", "ours", "ours+tiktoken"):
        assert flat <= predictions(counter, [growth], words)[0] <= flat + 120


def test_ours_believes_the_reported_output() -> None:
    (plain,) = predictions("ours", recorded(output=0))
    (told,) = predictions("ours", recorded(output=700))
    assert plain == predictions("estimate", recorded())[0]
    assert plain != told
    (more,) = predictions("ours", recorded(output=701))
    assert more == told + 1


def test_hidden_thoughts_that_are_not_sent_back_are_not_counted() -> None:
    (told,) = predictions("ours", recorded("gemini-2.5-flash", output=9_000))
    assert told == predictions("ours", recorded("gemini-2.5-flash", output=0))[0]


def test_ours_learns_from_one_growth_to_the_next() -> None:
    first, *_, last = predictions("ours", recorded(steps=12))
    assert abs(last - 2_000) * 5 < abs(first - 2_000)


def test_ours_knows_nothing_of_what_it_predicts() -> None:
    told = recorded(steps=3)
    other = [*told[:2], _grown_by(told[2], 3_333)]
    assert predictions("ours", told) == predictions("ours", other)


def _grown_by(growth: Growth, tokens: int) -> Growth:
    return msgspec.structs.replace(growth, grown_tokens=tokens)


@pytest.mark.parametrize("counter", ["tiktoken", "ours+tiktoken", "nothing"])
def test_a_counter_that_is_not_there_is_no_counter(counter: str) -> None:
    with pytest.raises(KeyError):
        predictions(counter, recorded())


def test_tiktokens_count_stands_in_for_the_estimate() -> None:
    (said,) = predictions("ours+tiktoken", recorded(), lambda text: 1_000)
    assert 2 * 1_150 < said < 2 * 1_150 + 100


def test_without_a_vocabulary_there_is_no_tiktoken(tmp_path: Path) -> None:
    assert find_tiktoken(Encodings(tmp_path)) is None
