"""A command is declared once, by its class on the wire; whatever else knows it agrees with that."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from llmsession import LLMSession, SessionManager, ToolResult
from llmsession.transport import RemoteManager, RemoteSession
from llmsession.transport.server.command_table import (
    ASYNC_COMMANDS,
    READ_COMMANDS,
    SERVICE_COMMANDS,
)
from llmsession.transport.server.connection import ROUTES, STEPS
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_client, encode
from tests.transport.places import CONFIG

OPENED = w.Opened("s", 0)
SESSION_CALLS: dict[str, tuple[type[w.Command[Any]], tuple[Any, ...], dict[str, Any]]] = {
    "send": (w.Send, ("hi",), {}),
    "submit_tool_results": (w.Submit, ([ToolResult("c1", "a")],), {}),
    "interrupt": (w.Interrupt, (), {}),
    "compact": (w.Compact, (), {}),
    "clear": (w.Clear, (), {}),
    "rewind": (w.Rewind, (1,), {}),
    "forget": (w.Forget, (1,), {}),
    "fork": (w.Fork, (), {}),
    "label": (w.Label, ({},), {}),
    "configure": (w.Configure, (), {}),
    "store_compact_summaries": (w.StoreSummaries, ({},), {}),
    "set_summary": (w.SetSummary, ("text",), {"upto": 1}),
    "close": (w.Close, (), {}),
    "read_conversation": (w.Conversation, (), {}),
    "read_context": (w.Context, (), {}),
    "read_status": (w.Status, (), {}),
    "read_usage": (w.UsageOf, (), {}),
    "read_open_calls": (w.OpenCalls, (), {}),
    "read_summary": (w.Summary, (), {}),
    "read_will_compact": (w.WillCompact, (), {}),
    "read_compact_summaries": (w.CompactSummaries, (), {}),
}
MANAGER_CALLS: dict[str, tuple[type[w.Command[Any]], tuple[Any, ...], dict[str, Any]]] = {
    "create": (w.Create, (CONFIG,), {}),
    "open": (w.Open, ("s",), {}),
    "list": (w.ListSessions, (), {}),
    "search": (w.SearchSessions, ("word",), {}),
    "row": (w.Row, ("s",), {}),
    "export_conversation": (w.Export, ("s",), {}),
    "delete": (w.Delete, ("s",), {}),
    "statistics": (w.Statistics, (), {}),
}
OF_SUBSCRIPTIONS = {w.Subscribe, w.Unsubscribe, w.Outcome}
"""Commands of subscriptions and turns, which have no method of their own."""
RENAMED: dict[tuple[object, str], str] = {
    (w.Fork, "fork"): "session_id",
    (w.Forget, "turn"): "before",
    (w.Forget, "moment"): "before",
    (w.Create, "session"): "session_id",
    (w.Open, "session"): "session_id",
    (w.Row, "session"): "session_id",
    (w.Export, "session"): "session_id",
    (w.Delete, "session"): "session_id",
}
PAGES = {(w.Conversation, "after"), (w.Conversation, "limit")}
"""A history is read whole, and sent in pages."""
EMBEDDED_ONLY = {"tools", "tenant", "unbound"}


class Sent(Exception):
    """Ends a call whose command was sent."""


class NoLink:
    """Stands for a link; raises the first command that it is given."""

    def new_id(self) -> int:
        return 1

    def ask(self, command: w.Command[Any]) -> Any:
        raise Sent(command)


def test_the_server_performs_every_command_in_one_way() -> None:
    assert set(ROUTES) == set(w.COMMANDS)
    tables = (READ_COMMANDS, ASYNC_COMMANDS, SERVICE_COMMANDS)
    of_connection: set[type[w.Command[Any]]] = {w.Open, w.Subscribe, w.Unsubscribe, w.Statistics}
    kinds: list[type[w.Command[Any]]] = [
        *of_connection,
        *(kind for table in tables for kind in table),
    ]
    assert sorted(w.tag_of(kind) for kind in kinds) == sorted(w.tag_of(kind) for kind in w.COMMANDS)
    assert set(STEPS) == {*READ_COMMANDS, *ASYNC_COMMANDS, w.Subscribe}
    assert {kind for kind in READ_COMMANDS if not issubclass(kind, w.Query)} == set()


def test_a_remote_session_or_manager_sends_every_command() -> None:
    kinds = {kind for kind, _, _ in (*SESSION_CALLS.values(), *MANAGER_CALLS.values())}
    assert kinds | OF_SUBSCRIPTIONS == set(w.COMMANDS)


@pytest.mark.parametrize("name", [*SESSION_CALLS, *MANAGER_CALLS])
async def test_a_method_has_the_parameters_that_its_command_has_as_fields(name: str) -> None:
    link: Any = NoLink()
    of_session = name in SESSION_CALLS
    kind, arguments, options = (SESSION_CALLS if of_session else MANAGER_CALLS)[name]
    remote = RemoteSession(link, OPENED) if of_session else RemoteManager(link)
    method: Callable[..., Awaitable[Any]] = getattr(remote, name)
    with pytest.raises(Sent) as sent:
        await method(*arguments, **options)
    command: Any = sent.value.args[0]
    assert isinstance(command, kind)
    assert decode_from_client(encode(command)) == command
    assert (
        "command_id" not in kind.__struct_fields__ or msgspec.structs.asdict(command)["command_id"]
    )

    embedded = getattr(LLMSession if of_session else SessionManager, name, None)
    for signed in (method, embedded) if embedded is not None else (method,):
        parameters = set(inspect.signature(signed).parameters) - {"self"} - EMBEDDED_ONLY
        fields = {
            RENAMED.get((kind, field), field)
            for field in kind.__struct_fields__
            if (kind, field) not in PAGES
            and (kind, field) != (w.Open, "here")  # a cluster's
            and field != "id"
            and not (of_session and field == "session")
        }
        assert fields == parameters


@pytest.mark.parametrize("kind", w.COMMANDS, ids=w.tag_of)
def test_the_type_of_each_answer_can_be_read(kind: type[w.Command[Any]]) -> None:
    msgspec.json.Decoder(w.body_type(kind))
