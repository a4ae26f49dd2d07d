"""A conversation made ready: its requests, its model, its ruler, what is capped at arrival."""

from __future__ import annotations

from llmsession.lab.recording import UNKNOWN_MODEL, record, window_of
from tests.lab.recorded import Recorded, call, result
from tests.lab.talks import with_times


def test_each_run_of_replies_is_the_answer_to_one_request() -> None:
    talk = Recorded().ask().reply("one", None).reply([call("c1")], None).answer(result("c1"))
    recording = record(talk.reply("two", None).ask().reply("three", None).done())
    assert [(ask.at, ask.end, ask.committed) for ask in recording.asks] == [
        (1, 3, 0), (4, 5, 0), (6, 7, 5),
    ]  # fmt: skip


def test_times_are_those_of_the_last_message_before_and_of_the_reply() -> None:
    talk = Recorded().ask().reply("one", None)
    (ask,) = record(with_times(talk, 100.0, 107.0)).asks
    assert (ask.asked_at, ask.replied_at) == (100.0, 107.0)
    (untimed,) = record(Recorded().ask().reply("one", None).done()).asks
    assert (untimed.asked_at, untimed.replied_at) == (None, None)


def test_a_call_without_a_result_gets_one_as_a_session_would_give_it() -> None:
    talk = Recorded().ask().reply([call("c1")], None).ask("never mind").reply("fine", None)
    recording = record(talk.done())
    assert [each.tool_use_id for m in recording.messages for each in m.tool_results] == ["c1"]


def test_the_turns_that_a_branch_shares_do_not_count() -> None:
    talk = Recorded().ask().reply("one", None).ask().reply("two", None)
    recording = record(talk.done(parent="other", shared_turns=1))
    assert [ask.counts for ask in recording.asks] == [False, True]


def test_the_model_is_the_one_that_replied_most() -> None:
    talk = Recorded("claude-opus-4-6").ask().reply("one", None).ask().reply("two", None)
    talk.model = "gpt-5.4"
    recording = record(talk.ask().reply("three", None).done())
    assert recording.model == "claude-opus-4-6"
    assert recording.profile.token_family == "claude"
    unnamed = Recorded().ask().reply("one", None, model=None).done()
    assert record(unnamed).model == UNKNOWN_MODEL


def test_reported_usage_teaches_the_ruler() -> None:
    talk = Recorded("claude-opus-4-6").ask()
    prompt = 1_000
    for step in range(40):
        talk.reply([call(f"c{step}", text="word " * 20)], prompt, 60)
        talk.answer(result(f"c{step}", "some words of a result " * 100))
        prompt += 900
    recording = record(talk.reply("done", prompt).done())
    ratio = recording.calibrations.of(recording.model).ratio_permille
    assert ratio > 1_100
    plain = record(Recorded("claude-opus-4-6").ask().reply("done", None).done())
    assert plain.calibrations.of(plain.model).ratio_permille == 1_000


def test_a_result_is_capped_at_a_quarter_of_the_budget_and_at_most_as_sessions_do() -> None:
    talk = Recorded("claude-opus-4-6").ask().reply([call("c1")], None)
    recording = record(talk.answer(result("c1", "x" * 100_000)).reply("done", None).done())
    small, large = window_of(recording, 32_000), window_of(recording, 1_000_000)
    assert len(small.capped["c1"]) <= 24_000 * 2.7 / 4 < 60_000
    assert 50_000 < len(large.capped["c1"]) <= 60_000
    assert small.sizes.budget_tokens == 24_000


def test_recall_is_among_the_tools_and_names_that_no_provider_takes_are_not() -> None:
    odd = {**call("c1"), "name": "no tool"}
    talk = Recorded().ask().reply([odd, call("c2")], None).answer(result("c1"), result("c2"))
    recording = record(talk.reply("done", None).done(system="be brief"))
    tools = b" ".join(bytes(tool) for tool in recording.tools)
    assert b'"look"' in tools
    assert b'"recall"' in tools
    assert b"no tool" not in tools
    assert window_of(recording, 32_000).frame.system == "be brief"
