"""The policies by name: what a configuration may ask for, ours and the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from llmsession.compaction.planning.policy import Policy
from llmsession.errors import InvalidConfig

__all__ = ["make_policy", "policy_kinds", "policy_names", "register", "settings_of"]

P = TypeVar("P", bound=type[Any])
_POLICIES: dict[str, type[Any]] = {}


def register(policy: P) -> P:
    """Make *policy*, a class whose ``name`` is new, one that configurations may name. A frozen
    msgspec Struct whose fields are its settings; returns it, so it serves as a decorator.

    Raises InvalidConfig for a class without a name, or with one that another class has.
    """
    name = getattr(policy, "name", None)
    if not isinstance(name, str) or not name or not issubclass(policy, msgspec.Struct):
        raise InvalidConfig(f"{policy!r} is no policy: a Struct with a name and a method plan")
    if not callable(getattr(policy, "plan", None)) or not callable(getattr(policy, "due", None)):
        raise InvalidConfig(f"policy {name!r} has no methods due and plan")
    if _POLICIES.setdefault(name, policy) is not policy:
        raise InvalidConfig(f"there is another policy of the name {name!r}")
    return policy


def policy_names() -> tuple[str, ...]:
    """The names that a configuration may use, in the order of their registration."""
    return tuple(_POLICIES)


def policy_kinds() -> tuple[type[Any], ...]:
    """The registered classes, in the order of their registration."""
    return tuple(_POLICIES.values())


def make_policy(
    name: str, options: Mapping[str, Any] | None = None, shared: Mapping[str, Any] | None = None
) -> Policy:
    """The policy *name* with the settings *options*, and of *shared* those that it knows.

    Raises InvalidConfig for a name or a setting that there is not, or a value that cannot be.
    """
    kind = _POLICIES.get(name)
    if kind is None:
        known = ", ".join(_POLICIES)
        raise InvalidConfig(f"there is no policy {name!r}; there are: {known}")
    fields = set(kind.__struct_fields__)
    unknown = sorted(set(options or ()) - fields)
    if unknown:
        raise InvalidConfig(f"policy {name!r} has no setting {unknown[0]!r}")
    takes = getattr(kind, "shares", ())
    parameters = {key: value for key, value in (shared or {}).items() if key in takes}
    try:
        policy: Policy = msgspec.convert({**parameters, **(options or {})}, kind)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"policy {name!r}: {error}") from error
    return policy


def settings_of(policy: object) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a policy value. Raises InvalidConfig if it is not one of a
    registered class."""
    for name, kind in _POLICIES.items():
        if type(policy) is kind:
            return name, msgspec.to_builtins(policy)
        if policy is kind:
            raise InvalidConfig(f"a policy is a value, {kind.__name__}(), or a name: {name!r}")
    raise InvalidConfig(
        f"{type(policy).__name__} is no registered policy: register its class first"
    )
