"""Every parameter of the public handles, embedded and remote: a wrong value is an InvalidInput, or
it works. No other error comes out, and the session goes on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from llmsession import (
    InvalidInput,
    LLMSession,
    SessionConfig,
    SessionFilter,
    SessionManager,
    SessionNotFound,
    Tool,
    ToolResult,
    TurnId,
)
from llmsession.errors import Gone, Refused, SessionClosed
from llmsession.session import Retention
from llmsession.transport import RemoteManager, RemoteSession
from llmsession.turns.records import Seed
from tests.session.odd_values import OBJECTS, Evil, Text
from tests.transport.places import place_at

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

CONFIG = SessionConfig(model="m")


WRONG: tuple[Any, ...] = (
    *OBJECTS,
    [Evil()], (None,), {5: "x"}, {"x": 5}, {"a": Text("x")}, {Text("a"): "x"}, {"a": "\ud83d"},
    {"\ud83d": "a"}, {"a" * 1000: "x"}, {str(n): "x" for n in range(70)}, "x" * 1000, "a\nb",
    "\x00",
    "u1", Text("u1"), TurnId("u", 1), TurnId("x", "y"), TurnId("u", True), 10**18, -(10**18), 1e308,  # type: ignore[arg-type]
    datetime(2026, 1, 1), datetime.min.replace(tzinfo=UTC),
    [ToolResult("c", "x")], [ToolResult(5, 5)], [ToolResult(Text("c"), Text("x"))],  # type: ignore[arg-type]
    [ToolResult("c", Evil())], [ToolResult("c", "x", is_error=Evil())],  # type: ignore[arg-type]
    [{"type": "text", "text": Evil()}],
    [{"type": "text", "text": Text("x")}], [{"type": Text("text"), "text": "x"}], [Tool(name="t")],
    [Tool(name=Evil())], [Tool(name="t", run=5)], [Retention(labels=5, delete_idle_s=1)],  # type: ignore[arg-type]
    SessionFilter(labels={"a": 5}), SessionFilter(labels={Text("a"): Text("b")}),  # type: ignore[dict-item]
    SessionFilter(created_after="x"), SessionFilter(labels=[]),  # type: ignore[arg-type]
    SessionFilter(touched_before=float("nan")), SessionFilter(labels={"\ud83d": None}),
    Seed(5), Seed(Text("x"), Text("y")), Seed("x", Evil()),  # type: ignore[arg-type]
    CONFIG, SessionConfig(model=Evil()), SessionConfig(model=Text("m")),  # type: ignore[arg-type]
    SessionConfig(model="\ud83d"),
    SessionConfig(model="m", options={"x": 2**70}), SessionConfig(model="m", options={"x": Evil()}),
)  # fmt: skip
NEEDED: dict[str, Any] = {
    "content": "hello", "results": (), "to": 0, "before": 1, "labels": {}, "summaries": {},
    "text": "so far", "upto": 1, "turn": None, "config": CONFIG, "session_id": "beside",
    "query": "word", "tenant": "t", "budget": None, "rules": (),
}  # fmt: skip
"""What a call gets beside the value under test."""
LEFT_OUT = {"close", "release", "drain", "events_of",
            "request_outcome", "import_conversation", "import_conversations"}  # fmt: skip
"""Calls that end the manager or take nothing; and those that are for the other layers."""
ALLOWED = (InvalidInput, Refused, SessionNotFound)
"""A name that nobody has, and a turn that is open, are no wrong values."""
CONFIGURED = set(SessionConfig.__struct_fields__)


def parameters(kind: type) -> Iterator[tuple[str, str]]:
    """The methods of *kind*, each with each of its parameters."""
    for name, method in vars(kind).items():
        if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(method):
            continue
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                yield from ((name, field) for field in sorted(CONFIGURED))
            else:
                yield name, parameter.name


async def call(owner: Any, name: str, parameter: str, value: Any) -> None:
    """Call the method with *value*, and with what it needs beside. What it gives is used, too."""
    signature = inspect.signature(getattr(type(owner), name)).parameters.values()
    needed = [each.name for each in signature if each.default is each.empty][1:]
    given = {each: NEEDED[each] for each in needed if each in NEEDED and each != parameter}
    if name == "turn" and parameter != "turn":
        given["turn"] = 1
    given[parameter] = value
    answer = getattr(owner, name)(**given)
    if inspect.isawaitable(answer):
        answer = await answer
    if name == "subscribe":
        answer.close()


async def refusals(owner: Any, name: str, parameter: str) -> list[str]:
    """What came out that must not."""
    wrong = []
    for index, value in enumerate(WRONG):
        try:
            with anyio.fail_after(1000):
                await call(owner, name, parameter, value)
        except ALLOWED:
            continue
        except Gone as error:
            if isinstance(error, SessionClosed) or name not in ("create", "fork"):
                wrong.append(f"{index}: {error!r:.200}")
        except BaseException as error:
            wrong.append(f"{index}: {type(error).__name__}: {str(error)[:200]}")
    return wrong


HANDLES: dict[str, tuple[type, type]] = {
    "embedded": (SessionManager, LLMSession),
    "unix": (RemoteManager, RemoteSession),
}
CALLS = [
    (place, name, parameter)
    for place, kinds in HANDLES.items()
    for kind in kinds
    for name, parameter in parameters(kind)
]


def test_the_table_has_every_parameter() -> None:
    assert len(CALLS) > 110


@pytest.mark.parametrize(("place", "name", "parameter"), CALLS)
async def test_a_wrong_value_of_a_parameter_is_an_invalid_input_or_works(
    place: str, name: str, parameter: str
) -> None:
    async with place_at(place, lambda request, tag: "fine") as at:
        await at.sessions.create(CONFIG, session_id="beside")
        session = await at.session()
        await (await session.send("hello")).outcome()
        owner = at.sessions if hasattr(type(at.sessions), name) else session
        assert await refusals(owner, name, parameter) == []
        again = await at.sessions.create(CONFIG)
        assert await (await again.send("hello")).text() == "fine"
        reopened = await at.manager.open(session.id)
        assert [row.session for row in await at.manager.list()]
        await reopened.close()
        await at.manager.open(session.id)
