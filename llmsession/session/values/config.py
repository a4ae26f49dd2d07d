"""A session's configuration: its fields, their checks, and its form in the log.

It is given when a session is created, and it can be changed between turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeAlias, overload

import msgspec

from llmsession.compaction.planning.policy import Policy
from llmsession.compaction.planning.schedule import Schedule
from llmsession.compaction.policies.limits import check_whole
from llmsession.compaction.policies.registry import (
    SHARED_SETTINGS,
    check_shared,
    lowered,
    make_policy,
    policy_names,
    settings_of,
    shared_by_default,
    takes,
)
from llmsession.compaction.provider_side import ProviderSideConfig
from llmsession.compaction.recall import RECALL_TOOL, RECALL_TOOL_NAME
from llmsession.errors import InvalidConfig, InvalidMessage
from llmsession.turns.blocks import Content, encode_json, is_number
from llmsession.turns.event_choice import OnFailure
from llmsession.turns.machine import TurnLimits
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Frame, Profile, Sizes, sizes_for
from llmsession.turns.spending.spending import SpendingBudget

from .function_schema import check_can_run, schema_of
from .history_limits import HistoryLimits

__all__ = [
    "CompactionConfig",
    "Recovery",
    "SessionConfig",
    "SummariserConfig",
    "Tool",
    "ToolCallable",
    "ToolOutput",
    "ToolResult",
    "Unbound",
    "WhenBusy",
    "bind_tools",
    "copy_of",
    "load_config",
    "logged_config",
    "store_config",
    "tool",
    "tools_with_callables",
    "unbound_tools",
]

WhenBusy: TypeAlias = Literal["queue", "reject", "interrupt", "steer"]
"""What ``LLMSession.send`` does while a turn is open."""
Recovery: TypeAlias = Literal["drop", "resume"]
"""What opening a session does with a turn that was running when its owner died: see
``SessionConfig``.
"""
Unbound: TypeAlias = Literal["raise", "caller", "warn"]
"""What ``SessionManager.open`` does if a tool that the session ran before has no function now:
raise ToolsUnbound, leave the tool to the caller, or do that and log a warning once for each tool.
"""
ToolCallable: TypeAlias = Callable[..., Any]
"""A tool's function. It is called with the call's input as keyword arguments: awaited if it is
async, else run in a thread.
"""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A return value for a tool's function that carries more than the content."""

    content: Content
    """The result: a text, or a list of blocks."""
    compact_summary: str | None = None
    """The text that later requests show instead of the result, once the result is old."""
    is_error: bool = False
    """Is the result an error? The model is shown that."""


class ToolResult(msgspec.Struct, frozen=True):
    """A tool's result that the caller submits with ``LLMSession.submit_tool_results``."""

    call_id: str
    """The id of the call, from its ``ToolUse`` event."""
    content: Content
    """The result: a text, or a list of blocks."""
    is_error: bool = False
    compact_summary: str | None = None
    """The text that later requests show instead of the result, once the result is old."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call.

    ``Tool.of(function)`` and the decorator ``tool`` make one from a function's signature. Functions
    are not stored: bind them again with ``open(id, tools=...)`` or ``SessionManager(tools=...)``.
    """

    name: str
    """Up to 128 letters, digits, ``_`` and ``-``: what providers allow."""
    description: str = ""
    """What the model is told of the tool."""
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    """The JSON Schema of the call's input."""
    run: ToolCallable | None = None
    """The function that runs the tool, with the call's input as keyword arguments. One that is not
    async runs in a thread. It returns a text, blocks, or a ToolOutput; an exception becomes an
    error result. None: the caller runs the tool and submits the result.
    """
    deadline_s: float | None = None
    """Seconds until the call gets an error result instead; replaces
    ``SessionConfig.tool_deadline_s``.
    """

    @classmethod
    def of(
        cls,
        function: ToolCallable,
        *,
        name: str | None = None,
        description: str | None = None,
        deadline_s: float | None = None,
    ) -> Tool:
        """Make a tool that runs *function*.

        Without *name* and *description* it gets the function's name and docstring. The input schema
        is made from the parameters. Their annotations may be anything that msgspec can read:
        numbers, texts, ``Literal``, enums, ``TypedDict``, dataclasses, structs, and lists and dicts
        of these. ``Annotated[T, "text"]`` describes a parameter.

        Before a call, its arguments are checked and converted, for example to a dataclass. If they
        do not fit, the function is not called, and the model gets an error result that says where.

        Raises InvalidConfig, naming the function, for a parameter that has no JSON Schema and for a
        generator function.
        """
        schema = schema_of(function)
        tool = cls(
            name=schema.name if name is None else name,
            description=schema.description if description is None else description,
            input_schema=schema.input_schema,
            run=schema.run,
            deadline_s=deadline_s,
        )
        return _checked_tool(tool, "Tool.of")

    def definition(self) -> msgspec.Raw:
        """The tool's definition for the provider, as JSON. Raises InvalidMessage if it cannot be
        encoded.
        """
        fields = {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
        }
        return msgspec.Raw(encode_json(fields))


_TOOL_OPTIONS = ("name", "description", "deadline_s")


@overload
def tool(function: ToolCallable, /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    deadline_s: float | None = None,
) -> Callable[[ToolCallable], Tool]: ...
def tool(
    function: ToolCallable | None = None,
    /,
    **options: Any,
) -> Tool | Callable[[ToolCallable], Tool]:
    """A decorator, with or without options, that makes a Tool from a function. See ``Tool.of``.

    Raises InvalidConfig for an unknown option, and the errors of ``Tool.of``.
    """
    for option in options:
        if option not in _TOOL_OPTIONS:
            known = ", ".join(_TOOL_OPTIONS)
            raise InvalidConfig(f"@tool has no option {option!r}; it has {known}")
    if function is not None:
        return Tool.of(function)
    return lambda function: Tool.of(function, **options)


CAP_CHARS = 60_000
"""The default of ``CompactionConfig.cap_chars``."""


class SummariserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model that writes summaries.

    It is reached through the manager's ``summariser`` provider or, without one, through the
    manager's ``provider``.
    """

    model: str
    """The provider's name of the model."""
    instructions: str = ""
    """Text that is added to the built-in instructions for summaries."""
    deadline_s: float = 60.0
    """The time for one summary, in seconds."""
    max_requests: int = 8
    """The number of model requests for one summary."""
    improve_results: bool = False
    """Also write summaries of single tool results, in the background."""
    max_concurrent: int = 2
    """How many summaries of tool results are written at the same time."""


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the context is kept inside the model's window. Compaction never changes the history.

    A field that is None is filled when the session is created or configured: from its environment
    variable (``LLMSESSION_THRESHOLD`` for ``threshold``, and so on), else with the default. The
    result is logged with the session.

    ``threshold``, ``threshold_tokens``, ``low``, ``keep_recent_turns``, ``keep_recent_steps`` and
    ``mode`` are settings of the policy. If the policy does not have a setting, a value for it
    raises InvalidConfig. So does a value that differs from the same setting in ``options``. For a
    policy without them, ``threshold`` and ``low`` stay None.
    """

    enabled: bool | None = None
    """Is the context compacted? By default it is."""
    policy: Any = None
    """The name of a registered policy, or a policy object. By default ``"balanced"``."""
    options: dict[str, Any] = {}
    """The policy's own settings by name."""
    threshold: float | None = None
    """The share of the budget above which the context is compacted, by default 0.80."""
    threshold_tokens: int | None = None
    """The same threshold in tokens, whatever the window is. The smaller of ``threshold`` and this
    one counts, and ``low`` is then at most half of it.
    """
    low: float | None = None
    """The share of the budget that a compaction aims for: by default 0.40, and at most half of
    ``threshold``.
    """
    warning: float | None = None
    """The share of the budget at which ``context.warning`` is published, by default 0.90."""
    keep_recent_turns: int = 5
    """This many of the newest turns are not compacted."""
    keep_recent_steps: int | None = 20
    """This many of the newest steps are not compacted."""
    mode: Literal["summarize", "redact"] = "summarize"
    """What replaces old tool results: their summaries, or a placeholder (``redact``)."""
    cap_chars: int | None = None
    """A result that is longer than this many characters is shown shortened from its arrival on.
    None: 60,000, and never more than a quarter of the budget.
    """
    summary_chars: int = 600
    """The largest size of a tool result's summary that the session makes itself, in characters."""
    min_gain: float = 0.05
    """A compaction that would free a smaller share of the tokens is not made, unless it keeps a
    limit of the policy's own.
    """
    max_failures: int = 3
    """After this many failed summaries in a row, fixed rules extract the summaries instead of a
    model, until something changes.
    """
    schedule: Schedule | None = None
    """When a compaction is applied. None lets the policy decide: a policy with a limit of its own
    acts before each request. A policy that waits for the provider's prompt cache, such as
    "balanced", acts when rewriting the prompt pays back or when that cache is cold anyway.
    ``"cache"`` makes every policy wait for the cache, ``"at_once"`` none.
    """
    summariser: SummariserConfig | None = None
    """The model that writes summaries. None: fixed rules extract them from the text."""
    provider_side: ProviderSideConfig | None = None
    """The part of the context management that is left to the provider, if any."""

    def make_policy(self, budget_tokens: int | None = None) -> Policy:
        """The policy that these settings select, for requests of up to *budget_tokens* tokens.

        Raises InvalidConfig, naming the setting.
        """
        checked = self.checked()
        names = shared_by_default(checked.policy) | checked.given()
        shared = {name: getattr(checked, name) for name in names}
        policy = make_policy(checked.policy, checked.options, shared)
        if checked.threshold_tokens is None or budget_tokens is None:
            return policy
        return lowered(policy, checked.threshold_tokens, budget_tokens)

    def given(self) -> frozenset[str]:
        """The names of the policy's settings whose value here is not the default."""
        return frozenset(
            name for name in SHARED_SETTINGS if getattr(self, name) != _SHARED_DEFAULTS[name]
        )

    def checked(self) -> CompactionConfig:
        """These settings with every None filled, and with the policy by its name.

        Raises InvalidConfig for the first invalid setting.
        """
        policy = "balanced" if self.policy is None else self.policy
        if self.enabled is not None and not isinstance(self.enabled, bool):
            raise InvalidConfig(f"compaction.enabled must be True or False, not {self.enabled!r}")
        if not isinstance(self.options, Mapping):
            kind = type(self.options).__name__
            raise InvalidConfig(
                f"compaction.options must be a dict of the policy's settings, not {kind}"
            )
        options = dict(self.options)
        if not isinstance(policy, str):
            policy, settings = settings_of(policy)
            options = {**settings, **options}
        self._check_given(policy, options)
        threshold, low = self._marks(policy, options)
        return msgspec.structs.replace(
            self,
            enabled=self.enabled is not False,
            policy=policy,
            options=options,
            threshold=threshold,
            low=low,
            warning=_share("warning", 0.90 if self.warning is None else self.warning),
            cap_chars=CAP_CHARS if self.cap_chars is None else self.cap_chars,
        )

    def _check_given(self, policy: str, options: Mapping[str, Any]) -> None:
        """Raises InvalidConfig for a setting that *policy* would ignore."""
        given = [name for name in SHARED_SETTINGS if name in self.given()]
        improves = isinstance(self.summariser, SummariserConfig) and self.summariser.improve_results
        # A summariser with improve_results uses keep_recent_turns and keep_recent_steps itself: it
        # summarises results that are no longer recent. So these are allowed for every policy.
        check_shared(policy, [name for name in given if not (improves and name in _RECENT)])
        if self.threshold_tokens is not None:
            check_whole("threshold_tokens", self.threshold_tokens, 1)
        for name in given:
            value = getattr(self, name)
            if name in options and options[name] != value:
                raise InvalidConfig(
                    f"compaction.{name} is {value!r}, but compaction.options or the policy sets"
                    f" {name} to {options[name]!r}; set it in one place"
                )

    def _marks(self, policy: str, options: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """The threshold and the low mark.

        None where the policy's own default applies, or where the policy has no such setting.
        """
        defaults = shared_by_default(policy)
        threshold = options.get("threshold", self.threshold)
        if threshold is None and "threshold" in defaults:
            threshold = 0.80
        if threshold is not None:
            threshold = _share("threshold", threshold)
        low = options.get("low", self.low)
        if low is not None:
            return threshold, _share("low", low)
        if "low" not in defaults:
            return threshold, None
        return threshold, 0.40 if threshold is None else min(0.40, threshold / 2)

    def as_logged_before(self) -> CompactionConfig:
        """These settings, read from a log, without the values that their policy does not have.

        Earlier versions logged the defaults of these settings for every policy, and ignored those
        that the policy did not have. Today such a value would raise InvalidConfig.
        """
        if not isinstance(self.policy, str) or self.policy not in policy_names():
            return self
        ignored = {
            name: _SHARED_DEFAULTS[name]
            for name in self.given()
            if not takes(self.policy, name)
            or self.options.get(name, getattr(self, name)) != getattr(self, name)
        }
        return msgspec.structs.replace(self, **ignored) if ignored else self


_SHARED_DEFAULTS: dict[str, Any] = dict(
    zip(CompactionConfig.__struct_fields__, CompactionConfig.__struct_defaults__, strict=True)
)
_RECENT = ("keep_recent_turns", "keep_recent_steps")


def _share(name: str, value: Any) -> float:
    if not is_number(value) or not 0 < value <= 1:
        raise InvalidConfig(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


PLAIN = Profile()
"""The profile that is used to size a frame if the model's own profile is not known."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One session's configuration. ``session.configure(...)`` changes it between turns.

    Only ``model`` is required. A field that is None is filled from its environment variable
    (``LLMSESSION_WINDOW_TOKENS``, ``LLMSESSION_MAX_TOKENS``) or stays open as described.
    """

    model: str
    """The provider's name of the model."""
    system: str | None = None
    """The system prompt."""
    tools: Sequence[Tool | Mapping[str, Any]] = ()
    """The tools that the model may call: Tool structs, or definitions as plain dicts."""
    max_tokens: int | None = None
    """Tokens of the window that are reserved for the reply. None: what the provider knows of the
    model, also after a change of model.
    """
    window_tokens: int | None = None
    """The model's context window in tokens. None: what the provider knows of the model, also after
    a change of model.
    """
    options: dict[str, Any] = {}  # copied by msgspec
    """Options for the provider, passed on as they are: temperature, thinking and others."""
    limits: TurnLimits = TurnLimits()
    """How many steps, seconds and tokens one turn may take."""
    budget: SpendingBudget | None = None
    """What the whole session may spend. A session that has spent it can continue with a greater
    one.
    """
    interrupt_policy: InterruptPolicy = "drop_turn"
    """What an interrupt keeps of the turn: see ``LLMSession.interrupt``."""
    on_failure: OnFailure = "keep_steps"
    """What becomes of a turn that is given up. ``keep_steps`` commits its complete steps with the
    stop reason ``error``, ``drop`` drops the turn.
    """
    recovery: Recovery = "drop"
    """What opening the session does with a turn that was running when its owner died or lost its
    store.

    ``drop`` drops the turn whole, whatever ``interrupt_policy`` says; its reason is ``crash``.
    ``resume`` continues it after its last record. Calls that the caller answers are offered again
    under their ids. Functions that may have started are not run again; their calls get the result
    "outcome unknown". The turn's steps and tokens go on counting, but tokens of replies that never
    became durable are not included. Its seconds, the deadlines of its calls, and the retries of its
    step begin anew.
    """
    tool_deadline_s: float | None = 600.0
    """Seconds that a call may wait for its result; then it gets an error result. None: no
    deadline.
    """
    grace_s: float = 0.1
    """Seconds that an interrupt waits for cancelled tools and streams to end. Then it goes on
    without them.
    """
    queue_limit: int = 256
    """The largest number of unread commands, and of queued turns."""
    compaction: CompactionConfig = CompactionConfig()
    """How the context is kept inside the window."""
    retention: HistoryLimits | None = None
    """How much of its history the session keeps. What exceeds a limit is erased for good.
    (Compaction, in contrast, erases nothing.)
    """
    log_content: bool = False
    """May events for the logger contain message content? By default they do not."""

    def checked(self) -> SessionConfig:
        """This configuration with its tools as Tool structs, and with its ``compaction`` checked.

        Raises InvalidConfig for the first field that cannot work, and names it.
        """
        if not isinstance(self.tools, list | tuple):
            raise InvalidConfig(f"tools must be a list of tools, not {type(self.tools).__name__}")
        tools = tuple(_tool(tool, index) for index, tool in enumerate(self.tools))
        if not isinstance(self.compaction, CompactionConfig):
            kind = type(self.compaction).__name__
            raise InvalidConfig(f"compaction must be a CompactionConfig, not {kind}")
        compaction = self.compaction.checked()
        if self.retention is not None:
            if not isinstance(self.retention, HistoryLimits):
                kind = type(self.retention).__name__
                raise InvalidConfig(f"retention must be a HistoryLimits, not {kind}")
            self.retention.checked()
        config = _as_logged(msgspec.structs.replace(self, tools=tools, compaction=compaction))
        names = [tool.name for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise InvalidConfig(f"tool {name!r} is defined twice; tool names must be unique")
            if name == RECALL_TOOL_NAME:
                raise InvalidConfig(
                    f"tool name {name!r} is reserved for the session's own tool; choose another"
                )
        _positive(
            max_tokens=config.max_tokens,
            window_tokens=config.window_tokens,
            queue_limit=config.queue_limit,
            tool_deadline_s=config.tool_deadline_s,
            cap_chars=config.compaction.cap_chars,
            summary_chars=config.compaction.summary_chars,
            max_steps=config.limits.max_steps,
            max_seconds=config.limits.max_seconds,
            silence_s=config.limits.silence_s,
            max_failures=config.compaction.max_failures,
            **_summariser_sizes(config.compaction.summariser),
            **_deadlines(config),
        )
        if not 0 <= config.compaction.min_gain < 1:
            gain = config.compaction.min_gain
            raise InvalidConfig(f"compaction.min_gain is {gain}; it must be at least 0 and below 1")
        if not config.model:
            raise InvalidConfig("model is empty")
        if config.grace_s < 0:
            raise InvalidConfig(f"grace_s is {config.grace_s}; it cannot be negative")
        if config.max_tokens is not None and config.window_tokens is not None:
            config.check_sizes(PLAIN)
        if config.compaction.provider_side is not None:
            config.compaction.provider_side.checked()
            if config.options.get("context_management"):
                raise InvalidConfig(
                    "options has a context_management and compaction.provider_side is set, too;"
                    " set only one of them"
                )
        config.compaction.make_policy()
        if config.budget is not None:
            config.budget.checked()
        return config

    def sent(self) -> SessionConfig:
        """This configuration as it is sent to a service: checked, with the fields that are None
        left open.

        The environment of the service fills them. Raises InvalidConfig.
        """
        checked, compaction = self.checked(), self.compaction
        return msgspec.structs.replace(
            checked,
            compaction=msgspec.structs.replace(
                compaction,
                policy=None if compaction.policy is None else checked.compaction.policy,
                options=checked.compaction.options,
            ),
        )

    @property
    def bound_tools(self) -> dict[str, Tool]:
        """The tools by name, after ``checked``."""
        return {tool.name: tool for tool in self.tools if isinstance(tool, Tool)}

    @property
    def max_age_s(self) -> float | None:
        """How old the session's messages may become, in seconds; None if they are kept at any
        age.
        """
        return self.retention.max_age_s if self.retention is not None else None

    def sizes(self, profile: Profile) -> Sizes:
        """The tokens of the window and of the reply, as set here or else from *profile*."""
        return sizes_for(self.window_tokens, self.max_tokens, profile)

    def check_sizes(self, profile: Profile) -> None:
        """Raises InvalidConfig if the reply leaves no tokens for a request."""
        sizes = self.sizes(profile)
        if sizes.max_tokens >= sizes.window_tokens:
            raise InvalidConfig(
                f"max_tokens {sizes.max_tokens} leaves no room for a request in a window of"
                f" {sizes.window_tokens} tokens; lower max_tokens or raise window_tokens"
            )

    def check_model(self, profile: Profile) -> None:
        """Raises InvalidConfig if a model with *profile* cannot run with this configuration.

        That is so if its window is too small, or if its provider cannot do what ``provider_side``
        leaves to it.
        """
        self.check_sizes(profile)
        side = self.compaction.provider_side
        if side is not None:
            side.check_model(self.model, profile, self.sizes(profile).budget_tokens)

    def frame(self, profile: Profile = PLAIN) -> Frame:
        """The parts of a request that are not messages. *profile* is the model's.

        The tool ``recall`` is part of every request, because adding it later would break the prompt
        cache.
        """
        tools = [tool.definition() for tool in self.bound_tools.values()]
        if self.compaction.enabled is not False and tools:
            tools.append(RECALL_TOOL)
        side = self.compaction.provider_side
        return Frame(
            model=self.model,
            max_tokens=self.sizes(profile).max_tokens,
            system=self.system,
            tools=tuple(tools),
            options=self.options if side is None else side.into(self.options, profile),
        )


def _tool(tool: Tool | Mapping[str, Any], index: int) -> Tool:
    if isinstance(tool, Mapping):
        try:
            tool = msgspec.convert(dict(tool), Tool)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"tools[{index}]: {error}") from error
    if not isinstance(tool, Tool):
        raise InvalidConfig(f"tools[{index}] is neither a Tool nor a definition{_hint(tool)}")
    return _checked_tool(tool, f"tools[{index}]")


def _hint(value: object) -> str:
    return "; make a Tool from the function: Tool.of(function)" if callable(value) else ""


def _checked_tool(tool: Tool, where: str) -> Tool:
    if not isinstance(tool.name, str) or not _TOOL_NAME.fullmatch(tool.name):
        rule = "a name has 1 to 128 letters, digits, _ and -, as providers require"
        raise InvalidConfig(f"{where}: invalid name {tool.name!r}; {rule}")
    if tool.run is not None:
        check_can_run(tool.run, f"{where} ({tool.name})")
    return tool


def _summariser_sizes(config: SummariserConfig | None) -> dict[str, float]:
    if config is None:
        return {}
    if not config.model:
        raise InvalidConfig("summariser: model is empty")
    return {
        "summariser.deadline_s": config.deadline_s,
        "summariser.max_requests": config.max_requests,
        "summariser.max_concurrent": config.max_concurrent,
    }


def _deadlines(config: SessionConfig) -> dict[str, float | None]:
    return {
        f"tool {name!r}: deadline_s": tool.deadline_s for name, tool in config.bound_tools.items()
    }


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value <= 0:
            raise InvalidConfig(f"{name} is {value}; it must be greater than 0")


def bind_tools(config: SessionConfig, tools: Sequence[Tool]) -> SessionConfig:
    """*config* with the functions of *tools* bound to its tools of the same names."""
    by_name = {tool.name: tool for tool in tools}

    def bound(tool: Tool) -> Tool:
        source = by_name.get(tool.name, tool)
        return msgspec.structs.replace(tool, run=source.run, deadline_s=source.deadline_s)

    return msgspec.structs.replace(config, tools=tuple(map(bound, config.bound_tools.values())))


def unbound_tools(config: SessionConfig, runners: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the tools in *config* that have no function now but ran in the session before,
    sorted.

    *runners* says, by tool name, who ran the tool when the model called it last.
    """
    bare = [tool.name for tool in config.bound_tools.values() if tool.run is None]
    return tuple(sorted(name for name in bare if runners.get(name) == "session"))


def copy_of(config: SessionConfig) -> SessionConfig:
    """*config* with dicts of its own: who changes them does not change those in force."""
    replace = msgspec.structs.replace
    tools = tuple(
        replace(tool, input_schema=deepcopy(tool.input_schema))
        for tool in config.bound_tools.values()
    )
    compaction = replace(config.compaction, options=deepcopy(config.compaction.options))
    return replace(config, options=deepcopy(config.options), tools=tools, compaction=compaction)


def tools_with_callables(config: SessionConfig) -> list[Tool]:
    """The tools of *config* that have a function.

    Functions are not in the log, so whoever loads the session must bind them again.
    """
    return [tool for tool in config.bound_tools.values() if tool.run is not None]


def store_config(config: SessionConfig) -> msgspec.Raw:
    """The configuration as it is logged: without the functions of tools."""
    bare = tuple(msgspec.structs.replace(tool, run=None) for tool in config.bound_tools.values())
    return msgspec.Raw(encode_json(msgspec.structs.replace(config, tools=bare)))


def _as_logged(config: SessionConfig) -> SessionConfig:
    """*config* as it would come back from the log, with its functions.

    A session runs with this form from the start, so that it runs with the same configuration after
    it is opened again. Raises InvalidConfig if the configuration cannot be logged and read back.
    """
    try:
        logged = load_config(store_config(config))
    except InvalidMessage as error:
        raise InvalidConfig(f"the configuration is {error}") from error
    return bind_tools(logged, tuple(config.bound_tools.values()))


def load_config(raw: msgspec.Raw) -> SessionConfig:
    """The configuration that was logged. Raises InvalidConfig if it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=_Stored).config()
    except msgspec.MsgspecError as error:
        raise InvalidConfig(f"the configuration cannot be read: {error}") from error


def logged_config(raw: msgspec.Raw) -> SessionConfig:
    """The configuration of a session that is opened again, checked.

    Raises InvalidConfig if it cannot be read.
    """
    config = load_config(raw)
    compaction = config.compaction.as_logged_before()
    return msgspec.structs.replace(config, compaction=compaction).checked()


class _Stored(SessionConfig, frozen=True, kw_only=True):
    """A configuration in the log: its tools are Tool structs."""

    tools: tuple[Tool, ...] = ()

    def config(self) -> SessionConfig:
        fields = {name: getattr(self, name) for name in SessionConfig.__struct_fields__}
        return SessionConfig(**fields)
