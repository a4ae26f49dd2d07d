"""The page on writing a policy says what is so, and its examples run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmsession.compaction.policies import make_policy, policy_names, registry
from llmsession.compaction.view.plan import Plan
from llmsession.session.values.config import CompactionConfig, SessionConfig
from tests.compaction.conversations import Talk
from tests.compaction.policies.contract import RULES
from tests.compaction.policies.plans import plan_of
from tests.compaction.policies.test_contract import lived

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "how-to" / "write-a-policy.md").read_text("utf-8")
REFERENCE = (DOCS / "reference" / "policy-interface.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's examples leave behind; the registry is put back."""
    monkeypatch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
    names: dict[str, Any] = {"__name__": "page"}
    for block in BLOCKS:
        exec(compile(block, "docs/how-to/write-a-policy.md", "exec", dont_inherit=True), names)
    return names


def test_the_example_is_whole_in_less_than_thirty_lines() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) < 30


def test_the_example_keeps_the_contract(ran: dict[str, Any]) -> None:
    policy = make_policy("forget_failures", {"keep_messages": 2})
    assert type(policy) is ran["ForgetFailures"]
    depth = lived(policy, 24)
    assert depth["plans"] >= 5, depth


def test_the_example_forgets_old_failures_and_nothing_else(ran: dict[str, Any]) -> None:
    built = Talk().ask().step("x" * 200, is_error=True).step("x" * 200)
    built.step("x" * 200, is_error=True, times=2).reply()
    plan = plan_of(ran["ForgetFailures"](keep_messages=5), built.messages, 500)
    assert isinstance(plan, Plan)
    assert plan.shown_results == {"c1": "[failed, long ago]"}


def test_the_example_is_a_sessions_policy_by_its_name_and_as_a_value(ran: dict[str, Any]) -> None:
    config = ran["config"]
    assert isinstance(config, SessionConfig)
    config.checked()
    made = [ran[name].make_policy() for name in ("by_name", "by_value")]
    assert made == [ran["ForgetFailures"](keep_messages=4)] * 2
    assert isinstance(ran["by_name"], CompactionConfig)


def test_the_registry_is_as_it_was() -> None:
    assert "forget_failures" not in policy_names()


def test_the_reference_lists_every_rule_as_the_contract_has_it() -> None:
    table = REFERENCE.split("<!-- rules -->")[1].split("<!-- end of rules -->")[0]
    assert dict(re.findall(r"^\| (G\d+) \| (.+) \|$", table, re.MULTILINE)) == RULES


def test_the_reference_lists_every_field_of_a_plan_that_changes_what_is_shown() -> None:
    section = REFERENCE.split("## What a plan may do")[1].split("What it may not do")[0]
    told = {
        "policy", "reason", "trigger", "tokens_before", "tokens_after", "results_summarised",
        "results_redacted", "turns_compacted", "voids_thinking",
    }  # fmt: skip
    for name in Plan.__struct_fields__:
        assert name in told or f"`{name}`" in section, name
