"""The policies by name, as a configuration may name them: ours, and those that a user registers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

from llmsession.compaction.planning.policy import Policy
from llmsession.errors import InvalidConfig

__all__ = [
    "SHARED_SETTINGS",
    "check_shared",
    "lowered",
    "make_policy",
    "policy_kinds",
    "policy_names",
    "register",
    "settings_of",
    "shared_by_default",
    "table_markdown",
    "takes",
]

SHARED_SETTINGS = (
    "threshold", "threshold_tokens", "low", "keep_recent_turns", "keep_recent_steps", "mode",
)  # fmt: skip
"""The settings of a ``CompactionConfig`` that are passed to the policy, if it has them."""
_LEAST_SHARE = 1e-6

P = TypeVar("P", bound=type[Any])
_POLICIES: dict[str, type[Any]] = {}


def register(policy: P) -> P:
    """Register *policy*, a class, so that configurations can name it. Returns it, so this can be a
    decorator.

    The class must be a frozen msgspec Struct with a new ``name`` and the methods ``due`` and
    ``plan``. Its fields are its settings. Raises InvalidConfig otherwise.
    """
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name or not issubclass(policy, msgspec.Struct):
        raise InvalidConfig(f"{policy!r} is no policy: it must be a Struct with a name")
    if not callable(getattr(policy, "plan", None)) or not callable(getattr(policy, "due", None)):
        raise InvalidConfig(f"policy {name!r} must have the methods due and plan")
    if _POLICIES.setdefault(name, policy) is not policy:
        raise InvalidConfig(f"another policy has the name {name!r}: choose a new one")
    return policy


def policy_names() -> tuple[str, ...]:
    """The names that a configuration may use, in the order of registration."""
    return tuple(_POLICIES)


def policy_kinds() -> tuple[type[Any], ...]:
    """The registered classes, in the order of registration."""
    return tuple(_POLICIES.values())


def _kind(name: str) -> type[Any]:
    kind = _POLICIES.get(name)
    if kind is None:
        known = ", ".join(_POLICIES)
        raise InvalidConfig(f"there is no policy {name!r}; there are: {known}")
    return kind


def _own_settings(kind: type[Any]) -> str:
    fields: tuple[str, ...] = kind.__struct_fields__
    return f"its own settings are: {', '.join(fields)}" if fields else "it has no settings"


def takes(name: str, setting: str) -> bool:
    """Does the policy *name* accept the shared *setting*?

    A limit in tokens lowers a share of the limit, so a policy with ``threshold`` accepts
    ``threshold_tokens``, too. Raises InvalidConfig for an unknown policy.
    """
    fields = _kind(name).__struct_fields__
    return setting in fields or (setting == "threshold_tokens" and "threshold" in fields)


def shared_by_default(name: str) -> frozenset[str]:
    """The settings of the policy *name* whose defaults come from ``CompactionConfig``.

    They are those in its ``shares``. For other settings of the same name, the policy's own default
    applies. Raises InvalidConfig for an unknown policy.
    """
    return frozenset(getattr(_kind(name), "shares", ()))


def check_shared(name: str, settings: Iterable[str]) -> None:
    """Raises InvalidConfig for the first of *settings* that the policy *name* does not have. The
    message lists those that it has.
    """
    for setting in settings:
        if not takes(name, setting):
            raise InvalidConfig(
                f"policy {name!r} has no setting {setting!r}; {_own_settings(_kind(name))}"
                f"{_how(_kind(name))}"
            )


def _how(kind: type[Any]) -> str:
    return " (they are given in options)" if kind.__struct_fields__ else ""


def lowered(policy: Policy, threshold_tokens: int, limit_tokens: int) -> Policy:
    """*policy*, changed so that it acts above *threshold_tokens* if that is below its threshold.

    Its low mark is then at most half of that. *limit_tokens* converts tokens into a share. A policy
    whose own limit is in tokens is returned unchanged.
    """
    settings = msgspec.structs.asdict(cast(msgspec.Struct, policy))
    if "threshold" not in settings or "threshold_tokens" in settings or limit_tokens <= 0:
        return policy
    # With a reserve, the threshold is a share of what is left.
    left_tokens = limit_tokens * (1 - settings.get("reserve", 0))
    share = max(_LEAST_SHARE, threshold_tokens / left_tokens)
    if share >= settings["threshold"]:
        return policy
    changes = {"threshold": share}
    if "low" in settings:
        changes["low"] = min(settings["low"], share / 2)
    return cast(Policy, msgspec.structs.replace(cast(msgspec.Struct, policy), **changes))


def make_policy(
    name: str, options: Mapping[str, Any] | None = None, shared: Mapping[str, Any] | None = None
) -> Policy:
    """The policy *name* with the settings *options*, and those of *shared* that it has.

    Raises InvalidConfig for an unknown policy or setting, or an invalid value.
    """
    kind = _kind(name)
    fields = set(kind.__struct_fields__)
    unknown = sorted(set(options or ()) - fields)
    if unknown:
        raise InvalidConfig(f"policy {name!r} has no setting {unknown[0]!r}; {_own_settings(kind)}")
    parameters = {key: value for key, value in (shared or {}).items() if key in fields}
    try:
        policy: Policy = msgspec.convert({**parameters, **(options or {})}, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"policy {name!r}: {error}") from error
    return policy


def table_markdown() -> str:
    """Which policy accepts which shared settings, as the table of
    docs/explanation/compaction.md.
    """
    names = [f"`{name}`" for name in SHARED_SETTINGS]
    lines = [f"| policy | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    rows = {name: [takes(name, setting) for setting in SHARED_SETTINGS] for name in _POLICIES}
    for name, taken in rows.items():
        if any(taken):
            marks = " | ".join("yes" if mark else "" for mark in taken)
            lines.append(f"| `{name}` | {marks} |".replace("|  |", "| |").replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def settings_of(policy: object) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a policy value. Raises InvalidConfig if its class is not
    registered.
    """
    for name, kind in _POLICIES.items():
        if type(policy) is kind:
            return name, msgspec.to_builtins(policy)
        if policy is kind:
            raise InvalidConfig(f"a policy is a value, {kind.__name__}(), or a name: {name!r}")
    raise InvalidConfig(
        f"{type(policy).__name__} is no registered policy: register its class first"
    )
