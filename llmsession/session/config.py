"""What a session is told when it is made, and between turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmsession.compaction.policies import SwapToolResults
from llmsession.compaction.projection import Frame
from llmsession.compaction.recall import RECALL_TOOL, RECALL_TOOL_NAME
from llmsession.errors import InvalidConfig, InvalidMessage
from llmsession.turns.blocks import Content, encode_json
from llmsession.turns.machine import TurnLimits
from llmsession.turns.naming import OnFailure
from llmsession.turns.records import InterruptPolicy
from llmsession.turns.request import Profile, Sizes, sizes_for

__all__ = [
    "CompactionConfig",
    "Recovery",
    "SessionConfig",
    "Tool",
    "ToolCallable",
    "ToolOutput",
    "ToolResult",
    "WhenBusy",
    "bind_tools",
    "load_config",
    "store_config",
]

WhenBusy: TypeAlias = Literal["queue", "reject", "interrupt", "steer"]
"""What a send does while a turn is open: see ``LLMSession.send``."""
Recovery: TypeAlias = Literal["drop", "resume"]
"""What becomes of a turn that was running when its owner died: see ``SessionConfig``."""
ToolCallable: TypeAlias = Callable[..., Any]
"""Called with the call's input as keyword arguments; async, or run in a thread."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a callable may return instead of its content alone.

    ``compact_summary`` is what a later request shows once the result is old.
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

    ``run`` is called with the call's input as keyword arguments, in a thread if it is not async;
    without it the caller runs the tool and submits the result. It returns text, blocks, or a
    ToolOutput; what it raises becomes an error result. ``deadline_s`` replaces the
    configuration's. Callables are not stored: bind them again with ``open(id, tools=...)``.
    """

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})
    run: ToolCallable | None = None
    deadline_s: float | None = None

    def definition(self) -> msgspec.Raw:
        """What the provider is told of it, as JSON. Raises InvalidMessage if that is no JSON."""
        fields = {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
        }
        return msgspec.Raw(encode_json(fields))


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the context is kept inside the window. History is never changed by it.

    ``threshold`` is the share of the budget at which old tool results are swapped for their
    summaries. ``keep_recent_turns`` and ``keep_recent_steps`` stay as they are. ``cap_chars`` is
    the length past which a result is shown capped from its arrival on. ``summary_chars`` bounds
    the summaries that the session makes itself.
    """

    enabled: bool = True
    threshold: float = 0.80
    keep_recent_turns: int = 5
    keep_recent_steps: int | None = 20
    mode: Literal["summarize", "redact"] = "summarize"
    cap_chars: int = 60_000
    summary_chars: int = 600
    min_gain: float = 0.05

    def policy(self) -> SwapToolResults:
        """The policy that these settings choose. Raises InvalidConfig, naming the setting."""
        return SwapToolResults(
            threshold=self.threshold,
            keep_recent_turns=self.keep_recent_turns,
            keep_recent_steps=self.keep_recent_steps,
            mode=self.mode,
        )


PLAIN = Profile()
"""What a frame is sized by where no model is asked."""


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One session's configuration. Changing it between turns is ``session.configure(...)``.

    ``window_tokens`` is the model's limit, of which ``max_tokens`` is left for the reply; None
    takes what the provider knows of the model, so that they follow a change of model.
    ``options`` go to the provider as they are (temperature, thinking, ...).
    ``tool_deadline_s`` is how long a call may stay without its result; None is for ever.
    ``queue_limit`` bounds the commands that wait unread, and the turns that wait their turn.

    ``recovery`` is what opening the session does with a turn that was running when its owner
    died, or lost its store. ``drop`` ends it as an interrupt would, reason ``crash``. ``resume``
    goes on after what the log has of it: the caller's open calls are offered again under their
    ids, and callables that may have started are not run again but answered as unknown. The
    turn's steps and tokens count on; its seconds, its calls' deadlines and the retries of the
    step begin anew, and tokens of replies that never became durable are not counted.
    """

    model: str
    system: str | None = None
    tools: Sequence[Tool | Mapping[str, Any]] = ()
    max_tokens: int | None = None
    window_tokens: int | None = None
    options: dict[str, Any] = {}  # copied by msgspec
    limits: TurnLimits = TurnLimits()
    interrupt_policy: InterruptPolicy = "drop_turn"
    on_failure: OnFailure = "keep_steps"
    recovery: Recovery = "drop"
    tool_deadline_s: float | None = 600.0
    grace_s: float = 0.1
    queue_limit: int = 256
    compaction: CompactionConfig = CompactionConfig()
    log_content: bool = False

    def checked(self) -> SessionConfig:
        """This configuration with its tools as Tool structs.

        Raises InvalidConfig for the first thing that cannot work, and names it.
        """
        if not isinstance(self.tools, list | tuple):
            raise InvalidConfig(f"tools is a list of tools, not {type(self.tools).__name__}")
        tools = tuple(_tool(tool, at) for at, tool in enumerate(self.tools))
        config = _as_logged(msgspec.structs.replace(self, tools=tools))
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
        )
        if not config.model:
            raise InvalidConfig("model is empty")
        if config.grace_s < 0:
            raise InvalidConfig(f"grace_s is {config.grace_s}; it cannot be negative")
        if config.max_tokens is not None and config.window_tokens is not None:
            config.check_sizes(PLAIN)
        config.compaction.policy()
        return config

    @property
    def bound_tools(self) -> dict[str, Tool]:
        """The tools by name, as checked."""
        return {tool.name: tool for tool in self.tools if isinstance(tool, Tool)}

    def sizes(self, profile: Profile) -> Sizes:
        """The window and the room for the reply, as given or as *profile* has them."""
        return sizes_for(self.window_tokens, self.max_tokens, profile)

    def check_sizes(self, profile: Profile) -> None:
        """Raises InvalidConfig where the reply's room leaves nothing for a request."""
        sizes = self.sizes(profile)
        if sizes.max_tokens >= sizes.window_tokens:
            raise InvalidConfig(
                f"max_tokens {sizes.max_tokens} leaves nothing of a window of {sizes.window_tokens}"
            )

    def frame(self, profile: Profile = PLAIN) -> Frame:
        """The parts of a request that are not messages. ``recall`` is there from the first
        request on: adding it later would break the prompt cache. *profile* is the model's."""
        tools = [tool.definition() for tool in self.bound_tools.values()]
        if self.compaction.enabled and tools:
            tools.append(RECALL_TOOL)
        return Frame(
            model=self.model,
            max_tokens=self.sizes(profile).max_tokens,
            system=self.system,
            tools=tuple(tools),
            options=self.options,
        )


def _tool(tool: Tool | Mapping[str, Any], at: int) -> Tool:
    if isinstance(tool, Mapping):
        try:
            tool = msgspec.convert(dict(tool), Tool)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"tools[{at}]: {error}") from error
    if not isinstance(tool, Tool):
        raise InvalidConfig(f"tools[{at}] is no Tool and no definition")
    if not isinstance(tool.name, str) or not _TOOL_NAME.fullmatch(tool.name):
        raise InvalidConfig(
            f"tools[{at}]: name {tool.name!r}; providers allow letters, digits, _ and -, up to 128"
        )
    if tool.run is not None and not callable(tool.run):
        raise InvalidConfig(f"tools[{at}] ({tool.name}): run cannot be called")
    return tool


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value <= 0:
            raise InvalidConfig(f"{name} is {value}; it must be greater than 0")


def bind_tools(config: SessionConfig, tools: Sequence[Tool]) -> SessionConfig:
    """*config* with the callables of *tools* bound to its tools of the same names."""
    given = {tool.name: tool for tool in tools}
    bound = tuple(
        msgspec.structs.replace(
            tool, run=given[tool.name].run, deadline_s=given[tool.name].deadline_s
        )
        if tool.name in given
        else tool
        for tool in config.bound_tools.values()
    )
    return msgspec.structs.replace(config, tools=bound)


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


class _Stored(SessionConfig, frozen=True, kw_only=True):
    tools: tuple[Tool, ...] = ()

    def config(self) -> SessionConfig:
        fields = {name: getattr(self, name) for name in SessionConfig.__struct_fields__}
        return SessionConfig(**fields)
