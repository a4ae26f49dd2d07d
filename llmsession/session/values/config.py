"""A session's configuration: given when it is created, and changed between turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from llmsession.turns.blocks import Content, encode_json
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
    "load_config",
    "logged_config",
    "store_config",
    "tool",
    "tools_with_callables",
    "unbound_tools",
]

WhenBusy: TypeAlias = Literal["queue", "reject", "interrupt", "steer"]
"""What a send does while a turn is open: see ``LLMSession.send``."""
Recovery: TypeAlias = Literal["drop", "resume"]
"""What happens to a turn that was running when its owner died: see ``SessionConfig``."""
Unbound: TypeAlias = Literal["raise", "caller", "warn"]
"""What ``open`` does where nobody binds a tool that the session ran before: it raises ToolsUnbound,
leaves the tool to the caller, or does so and logs a warning, once for each tool."""
ToolCallable: TypeAlias = Callable[..., Any]
"""Called with the call's input as keyword arguments; async, or run in a thread."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a callable may return instead of its content alone.

    ``compact_summary`` replaces the result in later requests, once the result is old.
    """

    content: Content
    compact_summary: str | None = None
    is_error: bool = False


class ToolResult(msgspec.Struct, frozen=True):
    """A result that the caller submits for a call. ``content`` is text or a list of blocks."""

    call_id: str
    content: Content
    is_error: bool = False
    compact_summary: str | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call.

    ``run`` is called with the call's input as keyword arguments, in a thread if it is not async. It
    returns text, blocks, or a ToolOutput; an exception becomes an error result. Without ``run`` the
    caller runs the tool and submits the result. ``Tool.of(function)`` and the decorator ``tool``
    make a definition from a function's signature. ``deadline_s`` replaces the configuration's.
    Callables are not stored: bind them again with ``open(id, tools=...)``.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    run: ToolCallable | None = None
    deadline_s: float | None = None

    @classmethod
    def of(
        cls,
        function: ToolCallable,
        *,
        name: str | None = None,
        description: str | None = None,
        deadline_s: float | None = None,
    ) -> Tool:
        """The tool that runs *function*, with its name and its docstring, if no others are given.

        The schema comes from the parameters: their annotations may be what msgspec can read, such
        as numbers, texts, ``Literal``, enums, ``TypedDict``, dataclasses, structs, and lists and
        dicts of these; ``Annotated[T, "text"]`` describes a parameter. The arguments of a call are
        checked and converted before the call, for example to a dataclass. If they do not fit, the
        function is not called, and the model gets an error result that says where.

        Raises InvalidConfig, naming the function, for a parameter that has no JSON Schema, and for
        a generator function.
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
        encoded."""
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
    """As a decorator, with or without options: makes a Tool of a function. See ``Tool.of``.

    Raises InvalidConfig for options that there are not, and as ``Tool.of``.
    """
    for option in options:
        if option not in _TOOL_OPTIONS:
            known = ", ".join(_TOOL_OPTIONS)
            raise InvalidConfig(f"@tool has no option {option!r}; it has {known}")
    if function is not None:
        return Tool.of(function)
    return lambda function: Tool.of(function, **options)


CAP_CHARS = 60_000
"""The default length past which a result is shown capped."""


class SummariserConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model that writes summaries, through the manager's ``summariser`` provider, or else its
    ``provider``. ``instructions`` are added to ours. ``deadline_s`` bounds the time for one
    summary, ``max_requests`` its requests. With ``improve_results`` it also writes summaries of
    single tool results, in the background, ``max_concurrent`` at a time."""

    model: str
    instructions: str = ""
    deadline_s: float = 60.0
    max_requests: int = 8
    improve_results: bool = False
    max_concurrent: int = 2


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the context is kept inside the window. Compaction never changes the history.

    ``policy`` is a registered name or a policy object, ``options`` are its settings by name.
    ``threshold`` is the share of the budget above which it acts, ``low`` the share that it goes
    down to, ``warning`` the share at which ``context.warning`` is published. The last
    ``keep_recent_turns`` and ``keep_recent_steps`` are not compacted. ``threshold_tokens`` is a
    threshold in tokens, whatever the window is; of it and ``threshold`` the smaller counts, and the
    low mark is at most half of that. A field that is None takes LLMSESSION_COMPACTION,
    LLMSESSION_POLICY, LLMSESSION_THRESHOLD and so on, else True, "balanced", 0.80, 0.40 and 0.90.

    ``threshold``, ``threshold_tokens``, ``low``, the two ``keep_recent_`` and ``mode`` belong to
    the policy. One that has no such setting refuses a value, and so does one whose ``options`` say
    another: InvalidConfig. Where it has none, ``threshold`` and ``low`` stay None.

    ``cap_chars`` is the length past which a result is shown capped from its arrival on (None:
    60,000, and never more than a quarter of the budget). ``summary_chars`` bounds the summaries
    of results that the session makes itself. ``summariser`` is a model for the other summaries;
    without one rules extract them. ``schedule`` None acts as the policy declares: one that keeps a
    limit of its own does so before each request; one that waits for the provider's cache, as
    "balanced" does, acts when a rewrite of the prompt pays back, or when that cache is cold anyway.
    "cache" lets every policy wait so, "at_once" none. ``provider_side`` is what is left to the
    provider, if anything is. A compaction that gains less than ``min_gain`` is not made, unless it
    keeps a policy's own limit. After ``max_failures`` summaries in a row that failed, rules extract
    them until something changes.
    """

    enabled: bool | None = None
    policy: Any = None
    options: dict[str, Any] = {}
    threshold: float | None = None
    threshold_tokens: int | None = None
    low: float | None = None
    warning: float | None = None
    keep_recent_turns: int = 5
    keep_recent_steps: int | None = 20
    mode: Literal["summarize", "redact"] = "summarize"
    cap_chars: int | None = None
    summary_chars: int = 600
    min_gain: float = 0.05
    max_failures: int = 3
    schedule: Schedule | None = None
    summariser: SummariserConfig | None = None
    provider_side: ProviderSideConfig | None = None

    def make_policy(self, budget_tokens: int | None = None) -> Policy:
        """The policy that these settings choose, for requests of up to *budget_tokens*. Raises
        InvalidConfig, naming the setting."""
        checked = self.checked()
        names = shared_by_default(checked.policy) | checked.given()
        shared = {name: getattr(checked, name) for name in names}
        policy = make_policy(checked.policy, checked.options, shared)
        if checked.threshold_tokens is None or budget_tokens is None:
            return policy
        return lowered(policy, checked.threshold_tokens, budget_tokens)

    def given(self) -> frozenset[str]:
        """Those of the policy's settings that have a value here which is not their default."""
        return frozenset(
            name for name in SHARED_SETTINGS if getattr(self, name) != _SHARED_DEFAULTS[name]
        )

    def checked(self) -> CompactionConfig:
        """These settings with every open field filled, and the policy by its name.

        Raises InvalidConfig for the first invalid one."""
        policy = "balanced" if self.policy is None else self.policy
        if self.enabled is not None and not isinstance(self.enabled, bool):
            raise InvalidConfig(f"enabled is True or False, not {self.enabled!r}")
        if not isinstance(self.options, Mapping):
            kind = type(self.options).__name__
            raise InvalidConfig(f"options is a policy's settings by name, not a {kind}")
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
        # Results are summarised once they are not recent any more, whatever the policy is.
        check_shared(policy, [name for name in given if not (improves and name in _RECENT)])
        if self.threshold_tokens is not None:
            check_whole("threshold_tokens", self.threshold_tokens, 1)
        for name in given:
            value = getattr(self, name)
            if name in options and options[name] != value:
                raise InvalidConfig(
                    f"{name} is {value!r}, and the policy's own setting says {options[name]!r};"
                    " say it once"
                )

    def _marks(self, policy: str, options: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """The threshold and the low mark; None where the policy's own default stands, or where it
        has no such setting."""
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
        """These settings of a log. A value that the policy never took is open again: earlier
        versions logged the defaults of settings for every policy, and ignored what it had not."""
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
    if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value <= 1:
        raise InvalidConfig(f"{name} must be between 0 and 1, got {value!r}")
    return float(value)


PLAIN = Profile()
"""The profile that a frame is sized by where the model's is not known."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One session's configuration. Changing it between turns is ``session.configure(...)``.

    ``window_tokens`` is the model's limit, of which ``max_tokens`` are reserved for the reply. None
    takes what the provider knows of the model, so that both follow a change of model. ``options``
    go to the provider as they are (temperature, thinking, ...). ``tool_deadline_s`` is how long a
    call may stay without its result; None is for ever. ``queue_limit`` bounds the unread commands,
    and the queued turns. ``budget`` is what the session may spend in total; with a greater one it
    can continue. ``retention`` is how much of its history the session keeps: what is beyond that is
    erased for good. Compaction hides from the model, and erases nothing.

    ``recovery`` is what opening the session does with a turn that was running when its owner died,
    or lost its store. ``drop`` ends it as an interrupt would, with the reason ``crash``. ``resume``
    continues it after its last record: the caller's open calls are offered again under their ids,
    and callables that may have started are not run again, but answered as unknown. The turn's steps
    and tokens count on. Its seconds, its calls' deadlines and the retries of the step begin anew.
    Tokens of replies that never became durable are not counted.
    """

    model: str
    system: str | None = None
    tools: Sequence[Tool | Mapping[str, Any]] = ()
    max_tokens: int | None = None
    window_tokens: int | None = None
    options: dict[str, Any] = {}  # copied by msgspec
    limits: TurnLimits = TurnLimits()
    budget: SpendingBudget | None = None
    interrupt_policy: InterruptPolicy = "drop_turn"
    on_failure: OnFailure = "keep_steps"
    recovery: Recovery = "drop"
    tool_deadline_s: float | None = 600.0
    grace_s: float = 0.1
    queue_limit: int = 256
    compaction: CompactionConfig = CompactionConfig()
    retention: HistoryLimits | None = None
    log_content: bool = False

    def checked(self) -> SessionConfig:
        """This configuration with its tools as Tool structs.

        Raises InvalidConfig for the first thing that cannot work, and names it.
        """
        if not isinstance(self.tools, list | tuple):
            raise InvalidConfig(f"tools is a list of tools, not {type(self.tools).__name__}")
        tools = tuple(_tool(tool, index) for index, tool in enumerate(self.tools))
        if not isinstance(self.compaction, CompactionConfig):
            kind = type(self.compaction).__name__
            raise InvalidConfig(f"compaction is a CompactionConfig, not {kind}")
        compaction = self.compaction.checked()
        if self.retention is not None:
            if not isinstance(self.retention, HistoryLimits):
                kind = type(self.retention).__name__
                raise InvalidConfig(f"retention is a HistoryLimits, not {kind}")
            self.retention.checked()
        config = _as_logged(msgspec.structs.replace(self, tools=tools, compaction=compaction))
        names = [tool.name for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise InvalidConfig(f"tool {name!r} is there twice")
            if name == RECALL_TOOL_NAME:
                raise InvalidConfig(f"tool name {name!r} is reserved for the session's own tool")
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
            raise InvalidConfig(f"min_gain is {gain}; it is a share from 0, and below 1")
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
                    "options has a context_management of its own; say it there or in provider_side"
                )
        config.compaction.make_policy()
        if config.budget is not None:
            config.budget.checked()
        return config

    def sent(self) -> SessionConfig:
        """This configuration, checked, as a service is sent it: its open fields stay open, so that
        the environment of the service fills them. Raises InvalidConfig."""
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
        """The tools by name, as checked."""
        return {tool.name: tool for tool in self.tools if isinstance(tool, Tool)}

    @property
    def max_age_s(self) -> float | None:
        """How old its messages may become, in seconds; None: any age."""
        return self.retention.max_age_s if self.retention is not None else None

    def sizes(self, profile: Profile) -> Sizes:
        """The tokens of the window and of the reply, as set here or as *profile* has them."""
        return sizes_for(self.window_tokens, self.max_tokens, profile)

    def check_sizes(self, profile: Profile) -> None:
        """Raises InvalidConfig where the reply leaves no tokens for a request."""
        sizes = self.sizes(profile)
        if sizes.max_tokens >= sizes.window_tokens:
            raise InvalidConfig(
                f"max_tokens {sizes.max_tokens} leaves nothing of a window of {sizes.window_tokens}"
            )

    def check_model(self, profile: Profile) -> None:
        """Raises InvalidConfig where the model, which has *profile*, cannot run with these sizes,
        or its provider cannot do what is left to it."""
        self.check_sizes(profile)
        side = self.compaction.provider_side
        if side is not None:
            side.check_model(self.model, profile, self.sizes(profile).budget_tokens)

    def frame(self, profile: Profile = PLAIN) -> Frame:
        """The parts of a request that are not messages. The tool ``recall`` is in every request:
        adding it later would break the prompt cache. *profile* is the model's."""
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
        raise InvalidConfig(f"tools[{index}] is no Tool and no definition{_hint(tool)}")
    return _checked_tool(tool, f"tools[{index}]")


def _hint(value: object) -> str:
    return "; make a Tool of a function: Tool.of(function)" if callable(value) else ""


def _checked_tool(tool: Tool, where: str) -> Tool:
    if not isinstance(tool.name, str) or not _TOOL_NAME.fullmatch(tool.name):
        rule = "providers allow letters, digits, _ and -, up to 128"
        raise InvalidConfig(f"{where}: name {tool.name!r}; {rule}")
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
    """*config* with the callables of *tools* bound to its tools of the same names."""
    by_name = {tool.name: tool for tool in tools}

    def bound(tool: Tool) -> Tool:
        source = by_name.get(tool.name, tool)
        return msgspec.structs.replace(tool, run=source.run, deadline_s=source.deadline_s)

    return msgspec.structs.replace(config, tools=tuple(map(bound, config.bound_tools.values())))


def unbound_tools(config: SessionConfig, runners: Mapping[str, str]) -> tuple[str, ...]:
    """The tools of *config* without a callable that the session ran itself when they were called
    last, as *runners* says by name; sorted."""
    bare = [tool.name for tool in config.bound_tools.values() if tool.run is None]
    return tuple(sorted(name for name in bare if runners.get(name) == "session"))


def tools_with_callables(config: SessionConfig) -> list[Tool]:
    """The tools of *config* that have a callable. Callables are not in the log: whoever loads the
    session has to bind them again."""
    return [tool for tool in config.bound_tools.values() if tool.run is not None]


def store_config(config: SessionConfig) -> msgspec.Raw:
    """The configuration as it is logged: without callables."""
    bare = tuple(msgspec.structs.replace(tool, run=None) for tool in config.bound_tools.values())
    return msgspec.Raw(encode_json(msgspec.structs.replace(config, tools=bare)))


def _as_logged(config: SessionConfig) -> SessionConfig:
    """*config* as it comes back from the log, with its callables: what a session runs with is
    what it runs with when it is opened again. Raises InvalidConfig if it could not be."""
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
    """The configuration of a session that is opened again, checked. Raises InvalidConfig if it
    cannot be read."""
    config = load_config(raw)
    compaction = config.compaction.as_logged_before()
    return msgspec.structs.replace(config, compaction=compaction).checked()


class _Stored(SessionConfig, frozen=True, kw_only=True):
    tools: tuple[Tool, ...] = ()

    def config(self) -> SessionConfig:
        fields = {name: getattr(self, name) for name in SessionConfig.__struct_fields__}
        return SessionConfig(**fields)
