"""Counting with tiktoken: what is counted, in slices of bounded size, off the event loop."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from llmsession.providers.counting.counts import ESTIMATE_ACCURACY
from llmsession.providers.counting.encodings import (
    CLAUDE_FIT,
    ENCODINGS,
    OWN_FIT,
    REQUEST_TOKENS,
    Fit,
)
from llmsession.providers.counting.stepping import Stepper
from llmsession.providers.counting.tiktoken_counter import SLICE_CHARS, TiktokenCounter
from llmsession.turns.request import Request, RequestMessage

from ..asked import Panicking, ask, profile_of, small_encodings

INLINE = Stepper(threads=False)
MIB = 1_000_000
ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
"""Of what is counted of a long text nothing depends on it."""


def counter(encoding: Any = None, **options: Any) -> TiktokenCounter:
    options.setdefault("encodings", small_encodings(encoding))
    options.setdefault("stepper", INLINE)
    return TiktokenCounter(profile_of, **options)


def fixed(messages: int = 1, fit: Fit = OWN_FIT) -> int:
    return messages * fit.message + REQUEST_TOKENS


@pytest.fixture
def real() -> TiktokenCounter:
    """With the vocabulary in the user's cache."""
    if None in map(ENCODINGS.get, ("o200k_base", "cl100k_base")):
        pytest.skip("no vocabulary: make vocabulary")
    return TiktokenCounter(profile_of, stepper=INLINE)


async def test_texts_tools_and_system_are_counted_and_images_are_a_flat_cost() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 5000}}
    said = [{"type": "text", "text": "look"}, image]
    request = ask(said, "fine", system="be kind", tools=({"name": "ls"},))
    count = await counter().count(request)
    texts = len("look") + len("fine") + len("be kind") + len('{"name":"ls"}')
    assert count.input_tokens == texts + 100 + OWN_FIT.tools + fixed(2)
    assert (count.method, count.accuracy, count.cached) == ("tiktoken", OWN_FIT.accuracy, False)


async def test_the_reply_to_expect_is_as_long_as_the_last_ones_and_at_most_what_may_be_said() -> (
    None
):
    replies = ask("hi", "x" * 100, "on", "y" * 300, "on")
    assert (await counter().count(replies)).estimated_output_tokens == 100
    small = msgspec.structs.replace(replies, max_tokens=30)
    assert (await counter().count(small)).estimated_output_tokens == 30
    none_yet = await counter().count(ask("hi", max_tokens=5))
    assert none_yet.estimated_output_tokens == 5


async def test_a_model_of_another_vendor_is_multiplied_by_its_fit() -> None:
    own = await counter().count(ask("x" * 1000))
    claude = await counter().count(ask("x" * 1000, model="claude-opus-4-5"))
    assert own.input_tokens == 1000 + fixed()
    assert claude.input_tokens == round(1000 * CLAUDE_FIT.factor) + fixed(1, CLAUDE_FIT)
    assert claude.accuracy == CLAUDE_FIT.accuracy


async def test_calls_and_results_cost_something_beside_their_texts() -> None:
    call = {"type": "tool_use", "id": "c", "name": "ls", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "out"}
    request = ask("go", [call, call], [result], model="claude-opus-4-5")
    count = await counter(Panicking("no such word")).count(request)
    texts = round(len("go" + "ls" + "ls" + "out") * CLAUDE_FIT.factor)
    tools = 2 * CLAUDE_FIT.call + CLAUDE_FIT.result
    assert count.input_tokens == texts + tools + fixed(3, CLAUDE_FIT)


async def test_the_names_of_special_tokens_are_ordinary_text() -> None:
    count = await counter().count(ask("<|endoftext|>"))
    assert count.input_tokens == len("<|endoftext|>") + fixed()


async def test_lone_surrogates_are_counted_as_what_replaces_them() -> None:
    broken = RequestMessage("user", msgspec.Raw(b'[{"type":"text","text":"a\\ud800b"}]'))
    request = msgspec.structs.replace(ask("x"), messages=(broken,), system="s\ud800")
    count = await counter().count(request)
    assert count.method == "tiktoken"
    assert count.input_tokens > fixed()


@ONE_BACKEND
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(" " * MIB, id="a million spaces"),
        pytest.param("\n" * MIB, id="a million line ends"),
        pytest.param(base64.b64encode(bytes(range(256)) * 2930).decode(), id="1 MB of base64"),
        pytest.param("🧑‍🚀👩🏽‍💻" * 20_000, id="emoji"),
    ],
)
async def test_a_long_text_is_cut_into_slices_and_every_character_is_counted_once(
    text: str,
) -> None:
    seen = Panicking("no such word")
    counting = counter(seen)
    count = await counting.count(ask(text))
    assert "".join(seen.seen) == text
    assert max(map(len, seen.seen)) <= SLICE_CHARS
    assert counting.statistics()["slices"] == -(-len(text) // SLICE_CHARS)
    assert count.input_tokens == len(text) + fixed()


@ONE_BACKEND
@pytest.mark.parametrize(
    ("text", "max_permille"),
    [(" " * MIB, 5), ("\n" * MIB, 5), ("a" * 300_000, 5), ("🧑‍🚀👩🏽‍💻" * 5_000, 5)],
    ids=["spaces", "line ends", "letters", "emoji"],
)
async def test_real_tiktoken_counts_what_it_would_panic_on_and_slices_cost_little(
    real: TiktokenCounter, text: str, max_permille: int
) -> None:
    count = await real.count(ask(text))
    assert (count.method, real.statistics()["failures"]) == ("tiktoken", 0)
    encoding = ENCODINGS.get("o200k_base")
    assert encoding is not None
    half = len(text) // 2  # below what tiktoken panics on
    exact = sum(len(encoding.encode_ordinary(part)) for part in (text[:half], text[half:]))
    assert abs(count.input_tokens - fixed() - exact) * 1000 <= max_permille * exact + 2000


async def test_the_real_vocabulary_counts_as_openai_documents_it(real: TiktokenCounter) -> None:
    # "tiktoken is great!" is the example of OpenAI's guide: 6 tokens in both encodings.
    for model in ("gpt-4o", "gpt-4"):
        count = await real.count(ask("tiktoken is great!", model=model))
        assert count.input_tokens == 6 + fixed()


async def test_a_panic_is_an_estimate_for_its_slice_alone_and_lowers_the_accuracy() -> None:
    counting = counter(Panicking("bad"))
    count = await counting.count(ask("good" * 10, [{"type": "text", "text": "bad!" * 10}]))
    assert count.input_tokens == 40 + 20 + fixed(2)
    assert count.method == "tiktoken"
    assert count.accuracy == pytest.approx((OWN_FIT.accuracy + ESTIMATE_ACCURACY) / 2)
    assert counting.statistics()["failures"] == 1


async def test_the_panic_of_the_real_tiktoken_is_caught(
    real: TiktokenCounter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmsession.providers.counting.tiktoken_counter.SLICE_CHARS", 2 * MIB)
    count = await real.count(ask(" " * MIB))
    assert real.statistics()["failures"] == 1
    assert count.input_tokens == MIB // 2 + fixed()
    assert count.accuracy == ESTIMATE_ACCURACY


async def test_what_is_no_failure_of_tiktoken_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        await counter(Panicking("bad", KeyboardInterrupt)).count(ask("bad"))


async def test_without_a_vocabulary_everything_is_an_estimate_and_says_so(tmp_path: Path) -> None:
    count = await counter(False).count(ask("x" * 100))
    assert (count.method, count.accuracy) == ("estimate", ESTIMATE_ACCURACY)
    assert count.input_tokens == 50 + fixed()


async def test_an_estimate_of_one_s_own_stands_in_for_the_length() -> None:
    counting = counter(False, estimate=lambda text, _profile: 7 * len(text))
    assert (await counting.count(ask("abc"))).input_tokens == 21 + fixed()


async def test_a_message_is_counted_once_and_known_by_its_content() -> None:
    seen = Panicking("no such word")
    counting = counter(seen)
    first = await counting.count(ask("one", "two"))
    again = await counting.count(ask("one", "two", "three"))
    assert seen.seen == ["one", "two", "three"]
    assert again.input_tokens == first.input_tokens + 5 + OWN_FIT.message
    assert counting.statistics()["known"] == 4  # with the empty frame


async def test_what_is_known_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmsession.providers.counting.tiktoken_counter.KNOWN_MESSAGES", 3)
    counting = counter()
    await counting.count(ask("a", "b", "c", "d", "e"))
    assert counting.statistics()["known"] == 3


@pytest.mark.real_time
async def test_a_short_request_is_counted_where_it_is_and_a_long_one_in_a_thread() -> None:
    class Where(Panicking):
        def encode_ordinary(self, text: str) -> list[int]:
            threads.append(threading.current_thread())
            return super().encode_ordinary(text)

    threads: list[threading.Thread] = []
    counting = counter(Where("no such word"), stepper=Stepper())
    await counting.count(ask("short"))
    await counting.count(ask("long" * 1000))
    assert [thread is threading.current_thread() for thread in threads] == [True, False]


@pytest.mark.real_time
async def test_a_cancelled_count_stops_after_the_slice_it_is_in_and_the_next_is_whole() -> None:
    entered, go_on = anyio.Event(), threading.Event()

    class Held(Panicking):
        def encode_ordinary(self, text: str) -> list[int]:
            anyio.from_thread.run_sync(entered.set)
            assert go_on.wait(100)
            return super().encode_ordinary(text)

    held = Held("no such word")
    counting = counter(held, stepper=Stepper())
    text = "x" * (5 * SLICE_CHARS)
    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(counting.count, ask(text))
            await entered.wait()
            tasks.cancel_scope.cancel()
            go_on.set()
        assert len(held.seen) == 1
        assert (await counting.count(ask(text))).input_tokens == len(text) + fixed()
    assert len(held.seen) == 6


@pytest.mark.real_time
async def test_many_counts_at_once_agree() -> None:
    counting = counter(stepper=Stepper())
    counts: list[int] = []

    async def one(request: Request) -> None:
        counts.append((await counting.count(request)).input_tokens)

    async with anyio.create_task_group() as tasks:
        for at in range(20):
            tasks.start_soon(one, ask(*(f"{each}" * 3000 for each in range(at % 4 + 1))))
    assert sorted(set(counts)) == [3000 * n + fixed(n) for n in (1, 2, 3, 4)]


OFFLINE = """
    import sys, anyio
    from llmsession.providers import ReplayProvider, default_counter
    from llmsession.turns.blocks import encode_blocks
    from llmsession.turns.request import Request, RequestMessage

    def refuse(event, arguments):
        if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.posix_spawn"):
            raise AssertionError(event)

    sys.addaudithook(refuse)
    message = RequestMessage("user", encode_blocks("word " * 2000))
    request = Request(model="gpt-4o", max_tokens=9, messages=(message,))
    counter = default_counter(ReplayProvider(()))
    print(anyio.run(counter.count, request).method)
"""


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_ever_downloaded_at_run_time(there: bool, tmp_path: Path) -> None:
    if there and ENCODINGS.get("o200k_base") is None:
        pytest.skip("no vocabulary: make vocabulary")
    environment = dict(os.environ)
    if not there:
        environment["LLMSESSION_CACHE"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OFFLINE)],
        capture_output=True,
        text=True,
        timeout=150,
        env=environment,
        check=False,
    )
    method = "tiktoken" if there else "estimate"
    assert (done.returncode, done.stdout) == (0, f"{method}\n"), done.stderr
    assert list(tmp_path.iterdir()) == []
