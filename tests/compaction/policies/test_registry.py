"""The policies by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from llmsession.compaction.policies import (
    Balanced,
    SwapToolResults,
    make_policy,
    policy_names,
    register,
    registry,
    settings_of,
)
from llmsession.compaction.view.plan import Plan
from llmsession.errors import InvalidConfig


class Never(msgspec.Struct, frozen=True, kw_only=True):
    """Compacts nothing."""

    name: ClassVar[str] = "never"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)
    threshold: float = 0.5
    patience: int = 3

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return False

    def plan(self, view: Any, messages: Any, budget: Any) -> Plan | None:
        return None


@pytest.fixture(autouse=True)
def only_ours(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_POLICIES", dict(registry._POLICIES))
        yield


def test_ours_are_there() -> None:
    assert {"balanced", "swap_tool_results"} <= set(policy_names())
    assert make_policy("balanced") == Balanced()
    assert make_policy("swap_tool_results", {"mode": "redact"}) == SwapToolResults(mode="redact")


def test_one_s_own_can_be_named_once_it_is_registered() -> None:
    with pytest.raises(InvalidConfig, match="no policy 'never'; there are: balanced"):
        make_policy("never")
    assert register(Never) is Never
    assert register(Never) is Never
    assert make_policy("never", {"patience": 9}) == Never(patience=9)
    assert settings_of(Never(threshold=0.7)) == ("never", {"threshold": 0.7, "patience": 3})


def test_what_all_share_reaches_those_that_know_it_and_their_own_goes_first() -> None:
    register(Never)
    shared = {"threshold": 0.7, "low": 0.3, "mode": "redact"}
    assert make_policy("never", {}, shared) == Never(threshold=0.7)
    assert make_policy("never", {"threshold": 0.9}, shared) == Never(threshold=0.9)
    assert make_policy("balanced", {}, shared) == Balanced(threshold=0.7, low=0.3)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"patients": 1}, "policy 'balanced' has no setting 'patients'"),
        ({"threshold": "much"}, "policy 'balanced': .*threshold"),
        ({"threshold": 1.5}, "threshold must be between 0 and 1"),
        ({"low": 0.9}, "low 0.9 must be below threshold"),
        ({"keep_recent_turns": 0}, "keep_recent_turns must be a whole number"),
        ({"keep_recent_steps": True}, "keep_recent_steps"),
    ],
)
def test_a_setting_that_cannot_be_is_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        make_policy("balanced", options)


class _Nameless(msgspec.Struct):
    pass


class _Plain:
    name = "plain"


class _Idle(msgspec.Struct):
    name: ClassVar[str] = "idle"


class _Other(msgspec.Struct):
    name: ClassVar[str] = "balanced"

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return False

    def plan(self, view: Any, messages: Any, budget: Any) -> Plan | None:
        return None


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (_Nameless, "is no policy"),
        (_Plain, "is no policy"),
        (_Idle, "must have the methods due and plan"),
        (_Other, "another policy has the name 'balanced'"),
    ],
)
def test_what_is_no_policy_is_refused(kind: type[Any], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        register(kind)


def test_a_value_of_a_class_that_nobody_registered_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="Never is no registered policy"):
        settings_of(Never())


def test_a_class_in_place_of_a_value_is_told_so() -> None:
    with pytest.raises(InvalidConfig, match=r"a value, Balanced\(\), or a name: 'balanced'"):
        settings_of(Balanced)
