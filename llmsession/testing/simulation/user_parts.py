"""A user's own parts in a simulation. What is wrong with them is said before anything is played."""

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

__all__ = ["UserParts", "config_of", "told_of_errors", "tools_of"]


class UserParts(msgspec.Struct, frozen=True, kw_only=True):
    """Who plays: a user's own parts in place of ours.

    *config* makes the configuration of each session, with a policy of the user's for example; its
    system prompt is replaced. *calls* says which of its tools the model calls, by name, with which
    arguments. *tools* are those that the session runs, where *config* does not have them; they must
    wait with anyio or trio alone, in no thread.
    """

    config: Callable[[Random], SessionConfig] | None = None
    tools: tuple[Tool, ...] = ()
    calls: Mapping[str, Callable[[Random], Mapping[str, Any]]] | None = None


def config_of(parts: UserParts, random: Random) -> SessionConfig:
    """What the cast's ``config`` makes. Raises InvalidInput where that is none, InvalidConfig
    where it cannot be used; what it raises itself passes."""
    if not callable(parts.config):
        raise InvalidInput("config of a cast is a function that makes a SessionConfig")
    made = parts.config(random)
    if not isinstance(made, SessionConfig):
        told = f"config of a cast has made {type(made).__name__}, not a SessionConfig"
        raise InvalidInput(told)
    return made.checked()


def tools_of(parts: UserParts, configs: Sequence[SessionConfig]) -> tuple[Tool, ...]:
    """The tools that the managers run for *cast*; () for ours. Raises InvalidInput for a cast
    that says of no tool, or of one that is not there, how it is called."""
    for tool in parts.tools:
        if not isinstance(tool, Tool):
            raise InvalidInput(f"tools of a cast are Tools, not {type(tool).__name__}")
    if parts.calls is not None and not parts.calls:
        raise InvalidInput("calls of a cast names no tool; without it ours are called")
    if parts.tools and parts.calls is None:
        raise InvalidInput("a cast with tools has calls, too: how the model calls them")
    offered = {name for config in configs for name in config.bound_tools}
    for name, make in (parts.calls or {}).items():
        if name not in offered:
            there = ", ".join(sorted(offered)) or "none"
            raise InvalidInput(f"the model is to call {name!r}; the tools of the sessions: {there}")
        _check_arguments(name, make)
    own = {tool.name: tool for tool in parts.tools}
    if parts.config is not None:
        bound = (tool for config in configs for tool in config.bound_tools.values())
        own.update((tool.name, tool) for tool in bound if tool.run is not None)
    return tuple(own.values())


def _check_arguments(name: str, make: Callable[[Random], Mapping[str, Any]]) -> None:
    try:
        made = make(Random(0))
        encode_json(dict(made))
    except Exception as error:  # it is anybody's code
        told = f"calls[{name!r}] makes no arguments: {error_text(error)}"
        raise InvalidInput(told) from error


def told_of_errors(config: SessionConfig, counts: Counter[str]) -> SessionConfig:
    """*config* with tools that count what they raise: to a session that is a result."""

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
