"""``LLMSESSION_*``: environment variables that fill configuration fields that are None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from llmsession.compaction.policies.registry import SHARED_SETTINGS, check_shared, policy_names
from llmsession.errors import InvalidConfig

from .config import CompactionConfig, SessionConfig, SummariserConfig

__all__ = [
    "COMPACTION_VARIABLES",
    "SIZE_VARIABLES",
    "SUMMARY_PROVIDER_VARIABLE",
    "table_markdown",
    "with_environment",
]

SUMMARY_PROVIDER_VARIABLE = "LLMSESSION_SUMMARY_PROVIDER"
"""Read once, when a manager is constructed without a ``summariser``: see
``registry.summary_provider``.
"""


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("use on or off")


def _count(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError("use a whole number") from None


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("use a number such as 0.8") from None


def _summariser(text: str) -> SummariserConfig:
    return SummariserConfig(model=text)


COMPACTION_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LLMSESSION_COMPACTION": ("enabled", _flag),
    "LLMSESSION_POLICY": ("policy", str),
    "LLMSESSION_THRESHOLD": ("threshold", _share),
    "LLMSESSION_THRESHOLD_TOKENS": ("threshold_tokens", _count),
    "LLMSESSION_LOW": ("low", _share),
    "LLMSESSION_WARNING": ("warning", _share),
    "LLMSESSION_CAP_CHARS": ("cap_chars", _count),
    "LLMSESSION_SUMMARY_MODEL": ("summariser", _summariser),
}
"""Variable -> the field of ``CompactionConfig`` that it fills, and the function that reads its
text.
"""
SIZE_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LLMSESSION_WINDOW_TOKENS": ("window_tokens", _count),
    "LLMSESSION_MAX_TOKENS": ("max_tokens", _count),
}
"""Variable -> the field of ``SessionConfig`` that it fills, and the function that reads its
text.
"""


Check: TypeAlias = Callable[[SessionConfig], object]


def with_environment(
    config: SessionConfig, environ: Mapping[str, str], check: Check = SessionConfig.checked
) -> SessionConfig:
    """*config* with the fields that are None filled from *environ*. *check* raises InvalidConfig
    for an invalid configuration.

    This is done when a session is created or configured. The result is stored in the session's log,
    so the environment of another machine does not change it later. A setting that is in the
    policy's own options is not filled. Raises InvalidConfig, naming the variable, for a value that
    cannot be read, for a setting that the policy does not have, and for what *check* refuses.
    """
    if not isinstance(config, SessionConfig) or not isinstance(config.compaction, CompactionConfig):
        return config  # ``checked`` raises the error
    filled = _filled(config.compaction, COMPACTION_VARIABLES, environ)
    _check_taken(replace(config.compaction, **filled), filled, environ)
    sizes = _filled(config, SIZE_VARIABLES, environ)
    if not filled and not sizes:
        return config
    _check_values(config, {**filled, **sizes}, environ, check)
    return _with_values(config, {**filled, **sizes})


def _with_values(config: SessionConfig, values: Mapping[str, Any]) -> SessionConfig:
    """*config* with *values* by the fields that the variables fill."""
    fields = {field for field, _ in COMPACTION_VARIABLES.values()} & values.keys()
    compaction = replace(config.compaction, **{field: values[field] for field in fields})
    sizes = {field: value for field, value in values.items() if field not in fields}
    return replace(config, **sizes, compaction=compaction)


def table_markdown() -> str:
    """The variables as the Markdown table in docs/reference/configuration.md."""
    rows = [
        (variable, f"compaction.{field}") for variable, (field, _) in COMPACTION_VARIABLES.items()
    ]
    rows += [(variable, field) for variable, (field, _) in SIZE_VARIABLES.items()]
    lines = ["| variable | setting | for example |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | `{field}` | `{_EXAMPLES[name]}` |" for name, field in rows]
    lines.append(
        f"| `{SUMMARY_PROVIDER_VARIABLE}` | the manager's `summariser` |"
        f" `{_EXAMPLES[SUMMARY_PROVIDER_VARIABLE]}` |"
    )
    return "\n".join(lines) + "\n"


_EXAMPLES = {
    "LLMSESSION_COMPACTION": "off",
    "LLMSESSION_POLICY": "swap_tool_results",
    "LLMSESSION_THRESHOLD": "0.7",
    "LLMSESSION_THRESHOLD_TOKENS": "50_000",
    "LLMSESSION_LOW": "0.35",
    "LLMSESSION_WARNING": "0.85",
    "LLMSESSION_CAP_CHARS": "20_000",
    "LLMSESSION_SUMMARY_MODEL": "claude-haiku-4-5",
    "LLMSESSION_WINDOW_TOKENS": "100_000",
    "LLMSESSION_MAX_TOKENS": "8_000",
    SUMMARY_PROVIDER_VARIABLE: "openai",
}


def _check_taken(
    compaction: CompactionConfig, filled: Mapping[str, Any], environ: Mapping[str, str]
) -> None:
    """Raises InvalidConfig for a variable whose setting the policy of *compaction* does not
    have.
    """
    policy = "balanced" if compaction.policy is None else compaction.policy
    if not isinstance(policy, str):
        policy = getattr(policy, "name", None)
    if policy not in policy_names():
        return  # ``checked`` reports an unknown policy
    for variable, (field, _) in COMPACTION_VARIABLES.items():
        if field in filled and field in SHARED_SETTINGS:
            try:
                check_shared(policy, [field])
            except InvalidConfig as error:
                text = environ[variable].strip()
                raise InvalidConfig(f"{variable} is {text!r}: {error}") from error


def _check_values(
    config: SessionConfig, filled: Mapping[str, Any], environ: Mapping[str, str], check: Check
) -> None:
    """Raises InvalidConfig if *filled* makes *config* invalid. The message names the variables.

    It names those that are invalid by themselves, or all of them if none is.
    """
    try:
        check(_with_values(config, filled))
    except InvalidConfig as error:
        check(config)  # raises instead if it is invalid without the environment, too
        fields = {
            variable: field
            for variable, (field, _) in {**COMPACTION_VARIABLES, **SIZE_VARIABLES}.items()
            if field in filled
        }
        wrong = [
            variable
            for variable, field in fields.items()
            if not _is_right(_with_values(config, {field: filled[field]}), check)
        ]
        values = ", ".join(f"{name} is {environ[name].strip()!r}" for name in wrong or fields)
        raise InvalidConfig(f"{values}: {error}") from error


def _is_right(config: SessionConfig, check: Check) -> bool:
    try:
        check(config)
    except InvalidConfig:
        return False
    return True


def _own_options(config: SessionConfig | CompactionConfig) -> set[str]:
    """The settings that are part of the policy's own options."""
    if not isinstance(config, CompactionConfig):
        return set()
    options = set(config.options) if isinstance(config.options, Mapping) else set()
    if config.policy is not None and not isinstance(config.policy, str):
        options |= set(getattr(config.policy, "__struct_fields__", ()))
    return options


def _filled(
    config: SessionConfig | CompactionConfig,
    variables: Mapping[str, tuple[str, Callable[[str], Any]]],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    own = _own_options(config)
    for variable, (field, read) in variables.items():
        text = environ.get(variable, "").strip()
        if not text or getattr(config, field) is not None or field in own:
            continue
        try:
            filled[field] = read(text)
        except ValueError as error:
            raise InvalidConfig(f"{variable} is {text!r}: {error}") from error
    return filled
