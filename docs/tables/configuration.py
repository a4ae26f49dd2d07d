"""Every setting: of a session, a manager, a policy, the environment and a service."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from docs.tables.fields import fields, fields_table, shown
from docs.tables.markdown import table, text
from llmsession import (
    ClearThinking,
    ClearToolUses,
    CompactAtThreshold,
    CompactionConfig,
    HistoryLimits,
    ProviderSideConfig,
    ProviderSummaries,
    Retention,
    SessionConfig,
    SessionManager,
    SpendingBudget,
    SummariserConfig,
    Tool,
    TurnLimits,
)
from llmsession.cli.common.service import TOKEN_VARIABLE
from llmsession.cli.common.stores import KEY_VARIABLE, STORE_VARIABLE
from llmsession.compaction.policies.registry import policy_kinds
from llmsession.providers.counting.vocabulary import CACHE_VARIABLE
from llmsession.transport.hosting.config import (
    CONFIG_VARIABLE,
    VARIABLES,
    LimitsTable,
    ProviderTable,
    RetentionTable,
    ServerConfig,
    TenantTable,
    TlsTable,
)

__all__ = ["TABLES"]

STRUCTS: tuple[type[msgspec.Struct], ...] = (
    SessionConfig, Tool, TurnLimits, HistoryLimits, Retention, SpendingBudget, CompactionConfig,
    SummariserConfig, ProviderSideConfig, ClearThinking, ClearToolUses, CompactAtThreshold,
    ProviderSummaries, ProviderTable, TenantTable,
)  # fmt: skip
"""Each has a table of its own, with the class's name."""

OTHER_VARIABLES: Mapping[str, str] = {
    STORE_VARIABLE: "the store of every command, as `--store`",
    KEY_VARIABLE: "the key of an encrypted store, instead of `--key-file`",
    TOKEN_VARIABLE: "the token of commands with `--connect`",
    CONFIG_VARIABLE: "the configuration file of `llmsession serve`, as `--config`",
    CACHE_VARIABLE: "the folder of downloaded vocabularies, instead of the user's cache",
    "ANTHROPIC_API_KEY": "the key of AnthropicProvider",
    "ANTHROPIC_BASE_URL": "the address of AnthropicProvider",
    "OPENAI_API_KEY": "the key of OpenAIProvider",
    "OPENAI_ADMIN_KEY": "a key of OpenAIProvider, as its SDK takes it",
    "OPENAI_BASE_URL": "the address of OpenAIProvider",
    "XDG_CACHE_HOME": "where the user's cache is",
    "XDG_DATA_HOME": "where `llmsession chat` keeps its sessions: `$XDG_DATA_HOME/llmsession`",
    "XDG_STATE_HOME": "where `llmsession chat` keeps its history of input lines",
}
"""Variables that are read directly, and what each is for."""

_ITEM = re.MULTILINE | re.DOTALL
_FLAGS: Mapping[str, str] = {
    "store_key_file": "--key-file", "grace_s": "--grace", "delete_idle_s": "--retain-idle",
    "max_sessions": "--retain-sessions", "forget_after_s": "--retain-age",
    "max_messages": "--retain-messages", "max_tokens": "--retain-tokens",
    "every_s": "--retain-every",
}  # fmt: skip
"""Settings whose option of ``llmsession serve`` has another name."""


def manager_options() -> str:
    """The parameters of SessionManager, with what its docstring says of each."""
    words = dict(
        re.findall(r"^- \*(\w+)\*:? (.*?)(?=^-|^$|\Z)", inspect.getdoc(SessionManager) or "", _ITEM)
    )
    rows = []
    for name, parameter in inspect.signature(SessionManager).parameters.items():
        default = (
            "required" if parameter.default is parameter.empty else _default(parameter.default)
        )
        rows.append(
            (f"`{name}`", f"`{parameter.annotation}`", default, _sentence(words.get(name, "")))
        )
    return table(("parameter", "type", "default", "meaning"), rows)


def _sentence(words: str) -> str:
    """What stands behind the name of a parameter, as a sentence of its own."""
    words = text(words.removeprefix("is ").removeprefix("are "))
    return words[:1].upper() + words[1:]


def _default(value: object) -> str:
    name = f"{value.__module__}.{value.__name__}" if inspect.isbuiltin(value) else shown(value)
    return f"`{name}`"


def policy_settings() -> str:
    """The settings of every policy that has any."""
    rows = []
    for policy in policy_kinds():
        for field in fields(policy):
            default = f"`{field.default}`" if field.default else "required"
            rows.append((f"`{policy.name}`", f"`{field.name}`", f"`{field.annotation}`", default))
    return table(("policy", "setting", "type", "default"), rows)


def other_variables() -> str:
    rows = ((f"`{name}`", words) for name, words in OTHER_VARIABLES.items())
    return table(("variable", "meaning"), rows)


def _service_table(kind: type[msgspec.Struct], prefix: tuple[str, ...] = ()) -> str:
    """The settings of *kind*, with the option and the environment variable of each."""
    from llmsession.cli.commands.serve import serve

    variables = {place: variable for variable, place in VARIABLES.items()}
    parameters = inspect.signature(serve).parameters
    rows = []
    for field in fields(kind):
        option = _FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
        has_option = option.removeprefix("--").replace("-", "_") in parameters
        is_flag = has_option and (not prefix or prefix == ("retention",))
        rows.append(
            (
                f"`{field.name}`",
                f"`{option}`" if is_flag or field.name == "store_key_file" else "",
                f"`{variables[*prefix, field.name]}`" if (*prefix, field.name) in variables else "",
                f"`{field.default}`" if field.default not in ("", "None") else "",
                field.words,
            )
        )
    return table(("setting", "option", "variable", "default", "meaning"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    **{kind.__name__: partial(fields_table, kind) for kind in STRUCTS},
    "SessionManager": manager_options,
    "policy settings": policy_settings,
    "other variables": other_variables,
    "ServerConfig": partial(_service_table, ServerConfig),
    "TlsTable": partial(_service_table, TlsTable, ("tls",)),
    "LimitsTable": partial(_service_table, LimitsTable, ("limits",)),
    "RetentionTable": partial(_service_table, RetentionTable, ("retention",)),
}
