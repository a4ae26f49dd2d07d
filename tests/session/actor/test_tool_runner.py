"""Running callables, and turning what comes back into answers, without a session around."""

from __future__ import annotations

import functools
import threading
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from llmsession.errors import InvalidMessage
from llmsession.session.actor.tool_runner import (
    INLINE_CHARS,
    make_answer,
    make_error,
    prepare_answers,
    run_callable,
)
from llmsession.session.tasks.tool_threads import ToolThreads
from llmsession.session.values.config import (
    CAP_CHARS,
    CompactionConfig,
    Tool,
    ToolOutput,
    ToolResult,
)
from llmsession.turns.blocks import Content
from llmsession.turns.receipts import settled_answer

ON = CompactionConfig()
OFF = CompactionConfig(enabled=False)


def tool(run: Any) -> Tool:
    return Tool(name="t", run=run)


async def returning(value: Any) -> ToolOutput:
    """What a callable that returns *value* becomes."""

    async def run() -> Any:
        await checkpoint()
        return value

    return await run_callable(tool(run), {})


# Running


@pytest.mark.parametrize(
    ("call_input", "content"), [({"path": "a", "deep": True}, "a True"), (None, "here False")]
)
async def test_the_calls_input_becomes_keyword_arguments(call_input: Any, content: str) -> None:
    async def run(path: str = "here", *, deep: bool = False) -> str:
        await checkpoint()
        return f"{path} {deep}"

    assert await run_callable(tool(run), call_input) == ToolOutput(content=content)


@pytest.mark.parametrize(
    ("call_input", "told"),
    [
        ({"file": "a"}, "'file'"),
        ({}, "'path'"),
        ([1], "the input must be a JSON object, not list"),
        ("a", "the input must be a JSON object, not str"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_the_model_can_read(
    call_input: Any, told: str
) -> None:
    async def run(path: str) -> str:
        await checkpoint()
        return path

    output = await run_callable(tool(run), call_input)
    assert output.is_error
    assert str(output.content).startswith("TypeError: ")
    assert told in str(output.content)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        (None, ""),
        (7, "7"),
        ({"a": [1]}, '{"a":[1]}'),
        (False, "false"),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
    ],
)
async def test_text_and_blocks_are_content_and_other_values_become_json(
    value: Any, content: Any
) -> None:
    assert await returning(value) == ToolOutput(content=content)


async def test_an_output_with_its_summary_is_passed_on_as_it_is() -> None:
    output = ToolOutput(content="whole", compact_summary="short", is_error=True)
    assert await returning(output) is output


@pytest.mark.parametrize(
    "error", [ValueError("no such file"), SystemExit(2), ExceptionGroup("two", [OSError("a")])]
)
async def test_what_a_callable_raises_becomes_an_error_output(error: BaseException) -> None:
    async def run() -> None:
        await checkpoint()
        raise error

    output = await run_callable(tool(run), {})
    assert output == ToolOutput(content=f"{type(error).__name__}: {error}", is_error=True)


async def test_what_cannot_be_made_content_becomes_an_error_output() -> None:
    output = await returning(object())
    assert output.is_error
    assert "InvalidMessage" in str(output.content)


async def test_cancellation_passes_through_an_async_callable() -> None:
    ended = []

    async def run() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cleaned up")

    with anyio.move_on_after(1) as scope:
        await run_callable(tool(run), {})
    assert scope.cancelled_caught
    assert ended == ["cleaned up"]


async def here(prefix: str, path: str) -> str:
    """Says in which thread it runs."""
    await checkpoint()
    return f"{prefix} {path} {threading.get_ident()}"


class AsyncObject:
    async def __call__(self, path: str) -> str:
        return await here("object", path)

    async def method(self, path: str) -> str:
        return await here("method", path)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (AsyncObject(), "object"),
        (AsyncObject().method, "method"),
        (functools.partial(here, "partial"), "partial"),
    ],
    ids=["object", "method", "partial"],
)
async def test_every_kind_of_async_callable_runs_in_the_event_loop(run: Any, said: str) -> None:
    # Time is virtual here: a hop to a thread would run into the deadline.
    with anyio.fail_after(0.001):
        output = await run_callable(tool(run), {"path": "a"})
    assert output == ToolOutput(content=f"{said} a {threading.get_ident()}")


@pytest.mark.real_time
async def test_a_synchronous_callable_runs_in_a_thread() -> None:
    output = await run_callable(tool(lambda path: f"{path} {threading.get_ident()}"), {"path": "a"})
    path, thread = str(output.content).split()
    assert path == "a"
    assert int(thread) != threading.get_ident()


@pytest.mark.real_time
@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("odd"), SystemExit(2)])
async def test_what_a_synchronous_callable_raises_becomes_an_error_output(
    error: BaseException,
) -> None:
    def run() -> None:
        raise error

    output = await run_callable(tool(run), {})
    assert output.is_error
    assert type(error).__name__ in str(output.content)


@pytest.mark.real_time
async def test_an_awaitable_from_a_synchronous_callable_is_awaited() -> None:
    output = await run_callable(tool(lambda path: here("lambda", path)), {"path": "a"})
    assert output == ToolOutput(content=f"lambda a {threading.get_ident()}")


@pytest.mark.real_time
async def test_a_synchronous_callable_is_waited_for_in_spite_of_a_cancellation() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        may_end.wait(100)
        ended.set()

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(run_callable, tool(run), {})
            while not begun.is_set():
                await checkpoint()
            group.cancel_scope.cancel()
            may_end.set()
        assert ended.is_set()


@pytest.mark.real_time
async def test_a_callable_that_waits_for_a_thread_is_cancelled_and_never_runs() -> None:
    begun, may_end, ran = threading.Event(), threading.Event(), list[str]()
    threads = ToolThreads(1)

    def holds() -> None:
        begun.set()
        may_end.wait(100)

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run_callable, tool(holds), {}, threads=threads, name="holds"))
            while not begun.is_set():
                await checkpoint()
            with anyio.move_on_after(0.01) as scope:
                await run_callable(tool(lambda: ran.append("late")), {}, threads=threads)
            assert scope.cancelled_caught
            assert threads.running == ("holds",)
            may_end.set()
    assert (ran, threads.running) == ([], ())


# Answers


def decoded(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def test_text_is_answered_as_text_and_blocks_as_blocks() -> None:
    text = make_answer(ToolResult("c", 'say "é"'), compaction=ON)
    assert (text.call_id, decoded(text.content), text.is_error) == ("c", 'say "é"', False)
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "x", "extra": 1},
        {"type": "image", "source": {}},
    ]
    assert decoded(make_answer(ToolResult("c", blocks), compaction=ON).content) == blocks


@pytest.mark.parametrize("is_error", [False, True])
def test_a_short_result_gets_neither_a_summary_nor_a_cap_and_may_be_an_error(
    is_error: bool,
) -> None:
    answer = make_answer(ToolResult("c", "short", is_error=is_error), compaction=ON)
    assert (answer.summary, answer.capped, answer.settled) == (None, None, None)
    assert answer.is_error is is_error


def test_a_long_result_gets_a_summary_of_bounded_length() -> None:
    long = "\n".join(f"line {at}: error" for at in range(1000))
    answer = make_answer(ToolResult("c", long), compaction=ON)
    assert answer.summary is not None
    assert 0 < len(answer.summary) <= ON.summary_chars
    assert decoded(answer.content) == long


def test_the_callers_summary_comes_before_an_extracted_one() -> None:
    long = "x\n" * 5000
    given = make_answer(ToolResult("c", long, compact_summary="mine"), compaction=ON)
    assert given.summary == "mine"
    blank = make_answer(ToolResult("c", long, compact_summary=" \n"), compaction=ON)
    assert blank.summary is not None
    assert "5,000 lines" in blank.summary


@pytest.mark.parametrize("as_blocks", [False, True], ids=["text", "blocks"])
def test_a_result_over_the_cap_is_shown_capped_and_kept_whole(as_blocks: bool) -> None:
    long = "\n".join(str(at) for at in range(50_000))
    content: Content = [{"type": "text", "text": long}] if as_blocks else long
    answer = make_answer(ToolResult("c9", content), compaction=ON)
    assert answer.capped is not None
    assert len(answer.capped) <= CAP_CHARS
    assert "c9" in answer.capped  # how to recall the whole
    assert decoded(answer.content) == content


def test_without_compaction_nothing_is_extracted_or_capped() -> None:
    long = "x\n" * 50_000
    bare = make_answer(ToolResult("c", long), compaction=OFF)
    assert (bare.summary, bare.capped) == (None, None)
    given = make_answer(ToolResult("c", long, compact_summary="mine"), compaction=OFF)
    assert given.summary == "mine"


def test_lone_surrogates_are_replaced_in_content_and_summary() -> None:
    answer = make_answer(ToolResult("c", "a\ud800b", compact_summary="s\udfff"), compaction=ON)
    assert decoded(answer.content) == "a\ufffdb"
    assert answer.summary == "s\ufffd"


@pytest.mark.parametrize(
    "content", [[1, 2], [{"text": "no type"}], "x" * (32 * 1024 * 1024)], ids=["1", "2", "large"]
)
def test_what_is_no_content_or_too_large_is_refused(content: Any) -> None:
    with pytest.raises(InvalidMessage):
        make_answer(ToolResult("c", content), compaction=ON)


async def test_small_results_are_prepared_at_once_in_order() -> None:
    results = [ToolResult(f"c{at}", "x") for at in range(3)]
    with anyio.CancelScope() as scope:
        scope.cancel()  # any wait would raise here
        answers = await prepare_answers(results, compaction=ON)
    assert answers == tuple(make_answer(result, compaction=ON) for result in results)
    assert [answer.call_id for answer in answers] == ["c0", "c1", "c2"]


@pytest.mark.real_time
@pytest.mark.parametrize("as_blocks", [False, True], ids=["text", "blocks"])
async def test_large_results_are_prepared_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, as_blocks: bool
) -> None:
    threads: list[int] = []

    def spy(result: ToolResult, *, compaction: CompactionConfig) -> Any:
        threads.append(threading.get_ident())
        return make_answer(result, compaction=compaction)

    monkeypatch.setattr("llmsession.session.actor.tool_runner.make_answer", spy)
    large = "x\n" * INLINE_CHARS
    content: Content = [{"type": "text", "text": large}] if as_blocks else large
    (answer,) = await prepare_answers([ToolResult("c", content)], compaction=ON)
    assert answer == make_answer(ToolResult("c", content), compaction=ON)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_one_result_that_is_no_content_refuses_them_all() -> None:
    results = [ToolResult("good", "x"), ToolResult("bad", [{"no": "type"}])]
    with pytest.raises(InvalidMessage):
        await prepare_answers(results, compaction=ON)


def test_an_error_answer_says_what_it_is_told() -> None:
    answer = make_error("c", "ValueError: é")
    assert (answer.call_id, decoded(answer.content)) == ("c", "ValueError: é")
    assert (answer.is_error, answer.settled) == (True, None)


def test_a_call_past_its_deadline_is_settled_neutrally_and_always_alike() -> None:
    answer = settled_answer("c", "deadline")
    assert "outcome unknown" in decoded(answer.content)
    assert (answer.is_error, answer.settled) == (True, "deadline")
    assert settled_answer("c", "deadline") == answer


async def test_a_tool_that_lets_its_own_cancellation_out_is_an_error_and_not_ours() -> None:
    async def run() -> str:
        with anyio.CancelScope() as own:
            own.cancel()
            try:
                await checkpoint()
            except anyio.get_cancelled_exc_class() as cancelled:
                escaped = cancelled
        raise escaped

    output = await run_callable(tool(run), {})
    assert output.is_error
    assert "the tool was cancelled" in str(output.content)


async def test_our_own_cancellation_of_a_tool_passes() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_callable(tool(checkpoint), {})
        pytest.fail("the cancellation was swallowed")
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("content", "came"),
    [
        (["a", 1], "a list whose item 0 is 'a'"),
        (({"type": "text", "text": "x"}, 1), "a tuple whose item 1 is 1"),
        ([{"text": "x"}], "a list whose item 0 is {'text': 'x'}"),
    ],
)
def test_a_list_of_anything_but_blocks_is_refused_with_what_to_return(
    content: Any, came: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        make_answer(ToolResult("c", content), compaction=ON)
    message = str(caught.value)
    assert message.startswith(f"the result is {came}; a list has to be one of content blocks")
    assert '{"type": "text", "text": "..."}' in message
    assert "json.dumps" in message
