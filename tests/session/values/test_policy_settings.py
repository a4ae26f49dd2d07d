"""Settings that a configuration has for its policy are taken or refused, never ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession import (
    CompactionConfig,
    InvalidConfig,
    Retention,
    SessionConfig,
    SessionManager,
    SummariserConfig,
)
from llmsession.compaction.policies import Balanced, SwapToolResults, policy_names, registry
from llmsession.session.values.config import load_config, logged_config, store_config
from llmsession.session.values.environment import COMPACTION_VARIABLES, with_environment
from llmsession.testing.scripted import ScriptedProvider

VALUES: dict[str, Any] = {
    "threshold": 0.7,
    "threshold_tokens": 1_000,
    "low": 0.11,
    "keep_recent_turns": 2,
    "keep_recent_steps": 3,
    "mode": "redact",
}
VARIABLES = {
    field: variable for variable, (field, _) in COMPACTION_VARIABLES.items() if field in VALUES
}
BUDGET = 10_000


def settings(policy: str) -> dict[str, Any]:
    fields: tuple[str, ...] = registry._POLICIES[policy].__struct_fields__
    return dict.fromkeys(fields)


def test_there_is_a_value_for_each_shared_setting() -> None:
    assert tuple(VALUES) == registry.SHARED_SETTINGS


@pytest.mark.parametrize("setting", VALUES)
@pytest.mark.parametrize("policy", policy_names())
def test_each_policy_takes_a_setting_or_refuses_it_and_names_its_own(
    policy: str, setting: str
) -> None:
    config = CompactionConfig(policy=policy, **{setting: VALUES[setting]})
    own = settings(policy)
    if setting in own:
        assert getattr(config.make_policy(BUDGET), setting) == VALUES[setting]
        assert getattr(config.checked().make_policy(BUDGET), setting) == VALUES[setting]
    elif setting == "threshold_tokens" and "threshold" in own:
        assert config.make_policy(BUDGET).due(1_001, BUDGET)
        assert not config.make_policy(BUDGET).due(999, BUDGET)
    else:
        told = ", ".join(own) if own else "it has no settings"
        with pytest.raises(InvalidConfig, match=f"{policy}.* no setting '{setting}'.*{told}"):
            config.checked()


@pytest.mark.parametrize("setting", VARIABLES)
@pytest.mark.parametrize("policy", policy_names())
def test_each_policy_takes_a_variable_or_refuses_it_and_names_both(
    policy: str, setting: str
) -> None:
    environ = {VARIABLES[setting]: str(VALUES[setting]), "LLMSESSION_POLICY": policy}
    own = settings(policy)
    if setting in own or (setting == "threshold_tokens" and "threshold" in own):
        compaction = with_environment(SessionConfig(model="m"), environ).checked().compaction
        assert getattr(compaction, setting) == VALUES[setting]
    else:
        with pytest.raises(InvalidConfig, match=f"{VARIABLES[setting]} is .*{policy}.*{setting}"):
            with_environment(SessionConfig(model="m"), environ)


@pytest.mark.parametrize("policy", policy_names())
def test_without_a_value_each_policy_has_its_defaults_and_is_opened_as_it_was(policy: str) -> None:
    config = SessionConfig(model="m", compaction=CompactionConfig(policy=policy)).checked()
    assert config.compaction.checked() == config.compaction
    assert logged_config(store_config(config)) == config
    made, plain = config.compaction.make_policy(), CompactionConfig(policy=policy).make_policy()
    assert made == plain
    for setting in ("threshold", "low"):
        shown = getattr(config.compaction, setting)
        assert shown == (getattr(made, setting) if shown is not None else None)


def test_of_the_share_and_the_tokens_the_smaller_counts() -> None:
    config = CompactionConfig(threshold=0.5, threshold_tokens=2_000)
    assert config.make_policy(10_000) == Balanced(threshold=0.2, low=0.1)
    assert config.make_policy(3_000) == Balanced(threshold=0.5, low=0.25)
    assert config.make_policy() == Balanced(threshold=0.5, low=0.25)
    low = CompactionConfig(threshold=0.5, low=0.05, threshold_tokens=2_000)
    assert low.make_policy(10_000) == Balanced(threshold=0.2, low=0.05)


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_threshold_in_tokens_is_a_whole_number(value: Any) -> None:
    with pytest.raises(InvalidConfig, match="threshold_tokens must be a whole number"):
        CompactionConfig(threshold_tokens=value).checked()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (CompactionConfig(policy=Balanced(), threshold=0.7), "threshold is 0.7, .* 0.8"),
        (CompactionConfig(options={"low": 0.2}, low=0.3), "low is 0.3, .* 0.2"),
        (CompactionConfig(policy=SwapToolResults(), mode="redact"), "mode is 'redact', .* 'summ"),
    ],
)
def test_a_setting_that_is_said_twice_and_differs_is_refused(
    config: CompactionConfig, told: str
) -> None:
    with pytest.raises(InvalidConfig, match=told):
        config.checked()


def test_what_the_policy_s_own_options_say_is_what_the_configuration_shows() -> None:
    checked = CompactionConfig(policy=Balanced(threshold=0.6, low=0.2)).checked()
    assert (checked.threshold, checked.low) == (0.6, 0.2)
    assert checked.checked() == checked


def test_a_variable_does_not_fill_what_the_policy_s_own_options_say() -> None:
    environ = {"LLMSESSION_THRESHOLD": "0.7"}
    for compaction in (
        CompactionConfig(options={"threshold": 0.6}),
        CompactionConfig(policy=Balanced(threshold=0.6)),
    ):
        config = with_environment(SessionConfig(model="m", compaction=compaction), environ)
        assert config.checked().compaction.threshold == 0.6


def test_what_is_recent_may_be_said_for_the_summaries_of_results_alone() -> None:
    summariser = SummariserConfig(model="m", improve_results=True)
    config = CompactionConfig(policy="full_history", keep_recent_turns=2, summariser=summariser)
    assert config.checked().keep_recent_turns == 2
    plain = msgspec.structs.replace(config, summariser=SummariserConfig(model="m"))
    with pytest.raises(InvalidConfig, match=r"full_history.* it has no settings"):
        plain.checked()


async def test_a_session_compacts_at_so_many_tokens_whatever_its_window_is() -> None:
    async with SessionManager(provider=ScriptedProvider(["hi"]), environ={}) as manager:
        compaction = CompactionConfig(threshold_tokens=5_000)
        session = await manager.create(
            SessionConfig(model="m", window_tokens=50_000, max_tokens=10_000, compaction=compaction)
        )
        policy = manager._runtime.actors[0].core.policy
        assert [policy.due(used, 40_000) for used in (5_000, 5_001)] == [False, True]
        await session.configure(window_tokens=30_000)
        policy = manager._runtime.actors[0].core.policy
        assert [policy.due(used, 20_000) for used in (5_000, 5_001)] == [False, True]


def test_a_log_with_settings_that_were_ignored_is_read_without_them() -> None:
    """Earlier versions logged the defaults of all settings for every policy."""
    compaction = CompactionConfig(policy="last_n_messages")
    config = SessionConfig(model="m", compaction=compaction).checked()
    filled = msgspec.structs.replace(config.compaction, threshold=0.8, low=0.4, mode="redact")
    old = store_config(msgspec.structs.replace(config, compaction=filled))
    with pytest.raises(InvalidConfig):
        load_config(old).checked()
    assert logged_config(old) == config


def test_limits_of_a_manager_are_not_those_of_a_session() -> None:
    wrong: Any = Retention(max_messages=9)
    with pytest.raises(InvalidConfig, match="retention must be a HistoryLimits, not Retention"):
        SessionConfig(model="m", retention=wrong).checked()
