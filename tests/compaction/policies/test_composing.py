from __future__ import annotations

import msgspec
import pytest

from llmsession import CompactionConfig
from llmsession.compaction.policies import (
    Balanced,
    FileReadDedupe,
    MemoryInjection,
    MiddlewarePipeline,
    Pipeline,
    Stage,
    StripThinking,
    make_policy,
    pipeline,
    settings_of,
)
from llmsession.errors import InvalidConfig
from tests.compaction.conversations import Talk, required, text, thinking_block
from tests.compaction.policies.plans import budget_for, plan_of


def test_a_pipeline_is_made_of_names_values_and_stages() -> None:
    made = pipeline("file_read_dedupe", StripThinking(threshold=0.5), Stage(policy="balanced"))
    assert made == Pipeline(
        stages=(
            Stage(policy="file_read_dedupe"),
            Stage(policy="strip_thinking", options={"threshold": 0.5}),
            Stage(policy="balanced"),
        )
    )


def test_it_is_configured_by_name_and_settings_as_any_policy() -> None:
    value = pipeline(MemoryInjection(memories=("likes tea",)), FileReadDedupe(), Balanced())
    name, options = settings_of(value)
    assert name == "pipeline"
    in_a_file = msgspec.json.decode(msgspec.json.encode(options))
    assert make_policy(name, in_a_file) == value
    assert CompactionConfig(policy=name, options=in_a_file).make_policy() == value


def test_the_pipeline_of_another_system_is_one_with_stages_of_its_own() -> None:
    assert isinstance(MiddlewarePipeline(), Pipeline)
    assert [stage.policy for stage in MiddlewarePipeline().stages] == [
        "memory_injection", "file_read_dedupe", "mask_consumed", "basic_fold",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        ((), "needs stages"),
        (("no_such",), "there is no policy 'no_such'"),
        ((Stage(policy="balanced", options={"lwo": 1}),), "has no setting 'lwo'"),
        (
            ("balanced", "memory_injection"),
            "'memory_injection' injects texts: move it before 'balanced'",
        ),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(policies: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        pipeline(*policies)


def test_thinking_is_stripped_once_and_from_its_threshold_on() -> None:
    built = Talk()
    for _ in range(4):
        built.ask("x" * 100)
        built.add("assistant", [thinking_block("t" * 2_000), text("y" * 100)])
    assert not StripThinking().due(799, 1_000)
    assert StripThinking().due(800, 1_000)
    plan = required(plan_of(StripThinking(), built.messages, 100))
    assert plan.drops_thinking
    assert plan.figures["thinking_tokens"] > 1_000
    assert plan_of(StripThinking(), Talk().turns(3).messages, 100) is None


def test_a_stage_that_measures_by_the_window_is_told_the_window() -> None:
    built = Talk()
    for _ in range(20):
        built.ask("x" * 2_000)
        built.add("assistant", [text("y" * 2_000)])
    limit = budget_for(built.messages, 1_000).used_tokens * 11 // 10
    # Its mark is 80 % of the window.
    policy = pipeline("append_only_projection")
    assert plan_of(policy, built.messages, limit) is not None
    assert plan_of(policy, built.messages, limit, window_tokens=limit * 2) is None
