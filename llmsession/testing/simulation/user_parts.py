"""A user's own parts in a simulation. They are checked before anything is run."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from llmsession.errors import InvalidInput, error_text
from llmsession.session.values.config import SessionConfig, Tool
from llmsession.turns.blocks import encode_json

__all__ = ["UserParts", "config_of", "count_errors", "tools_of"]


class UserParts(msgspec.Struct, frozen=True, kw_only=True):
    """A user's own parts, in place of the built-in ones.

    *config* makes the configuration of each session. Its system prompt is replaced. *calls* names
    the tools that the model calls, with functions that make their arguments. *tools* are the tools
    that the session runs, if *config* does not have them. They must wait with anyio or trio alone,
    and use no thread.
    """

    config: Callable[[Random], SessionConfig] | None = None
    tools: tuple[Tool, ...] = ()
    calls: Mapping[str, Callable[[Random], Mapping[str, Any]]] | None = None


def config_of(parts: UserParts, random: Random) -> SessionConfig:
    """What ``config`` of *parts* makes. Raises InvalidInput if it makes no configuration, and
    InvalidConfig if it cannot be used. Exceptions of the function pass."""
    if not callable(parts.config):
        raise InvalidInput("UserParts.config must be a function that returns a SessionConfig")
    config = parts.config(random)
    if not isinstance(config, SessionConfig):
        kind = type(config).__name__
        raise InvalidInput(f"UserParts.config returned {kind}, not a SessionConfig")
    return config.checked()


def tools_of(parts: UserParts, configs: Sequence[SessionConfig]) -> tuple[Tool, ...]:
    """The tools that the managers run for *parts*; () for the built-in ones.

    Raises InvalidInput if there are tools but no calls, and for calls of no tool or of an unknown
    one.
    """
    for tool in parts.tools:
        if not isinstance(tool, Tool):
            raise InvalidInput(f"UserParts.tools must be Tools, not {type(tool).__name__}")
    if parts.calls is not None and not parts.calls:
        raise InvalidInput("UserParts.calls names no tool; leave it out for the built-in tools")
    if parts.tools and parts.calls is None:
        raise InvalidInput("UserParts with tools also needs calls: how the model calls them")
    offered = {name for config in configs for name in config.bound_tools}
    for name, make in (parts.calls or {}).items():
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise InvalidInput(f"UserParts.calls names the unknown tool {name!r}; known: {known}")
        _check_arguments(name, make)
    own = {tool.name: tool for tool in parts.tools}
    if parts.config is not None:
        bound = (tool for config in configs for tool in config.bound_tools.values())
        own.update((tool.name, tool) for tool in bound if tool.run is not None)
    return tuple(own.values())


def _check_arguments(name: str, make: Callable[[Random], Mapping[str, Any]]) -> None:
    try:
        arguments = make(Random(0))
        encode_json(dict(arguments))
    except Exception as error:  # the function is the user's code
        message = f"UserParts.calls[{name!r}] makes no arguments: {error_text(error)}"
        raise InvalidInput(message) from error


def count_errors(config: SessionConfig, counts: Counter[str]) -> SessionConfig:
    """*config* with tools that count what they raise. To a session an exception is a result."""

    def counted(tool: Tool) -> Tool:
        run: Any = tool.run
        if run is None or not inspect.iscoroutinefunction(run):
            return tool

        async def counting(**arguments: Any) -> Any:
            try:
                return await run(**arguments)
            except Exception as error:
                counts[f"tool {tool.name}: {type(error).__name__}"] += 1
                raise

        return msgspec.structs.replace(tool, run=counting)

    return msgspec.structs.replace(config, tools=tuple(map(counted, config.bound_tools.values())))
