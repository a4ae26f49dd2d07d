"""Embedded and remote have one interface, and an address chooses between transports."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import llmsession
from llmsession import InvalidInput, LLMSession, SessionConfig, SessionManager, Turn
from llmsession.testing import ScriptedProvider
from llmsession.transport import (
    ManagerInterface,
    RemoteManager,
    RemoteSession,
    RemoteTurn,
    SessionInterface,
    TurnInterface,
)

LOADED_LATER = ("ManagerInterface", "Service", "SessionInterface", "TurnInterface", "connect")


def test_interfaces_and_the_service_are_at_the_root_and_are_loaded_when_they_are_used() -> None:
    code = (
        "import sys, llmsession as root; loaded = 'llmsession.transport' in sys.modules;"
        f"print(loaded, all(getattr(root, name) for name in {LOADED_LATER}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "False True\n"
    assert {*LOADED_LATER, "RoutedProvider"} <= {*llmsession.__all__}
    assert llmsession.ManagerInterface is ManagerInterface


def test_every_name_of_the_root_is_that_of_its_part() -> None:
    tree = ast.parse(Path(str(llmsession.__file__)).read_text("utf-8"))
    homes = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        and node.module.startswith("llmsession")
        for alias in node.names
    }  # fmt: skip
    assert sorted(homes) == sorted(llmsession.__all__)
    for name, home in homes.items():
        assert getattr(llmsession, name) is getattr(importlib.import_module(str(home)), name)
    assert {*llmsession.__all__} <= {*dir(llmsession)}


MANAGERS: list[type[ManagerInterface]] = [SessionManager, RemoteManager]
SESSIONS: list[type[SessionInterface]] = [LLMSession, RemoteSession]
TURNS: list[type[TurnInterface]] = [Turn, RemoteTurn]
"""That these are typed so is half of the test: the type checker compares the signatures."""

EMBEDDED_ONLY = {"tools", "tenant", "unbound"}
"""Callables cannot be sent, the service binds them, and whose a session is, the token says."""


@pytest.mark.parametrize(
    ("interface", "kinds"),
    [(ManagerInterface, MANAGERS), (SessionInterface, SESSIONS), (TurnInterface, TURNS)],
    ids=["manager", "session", "turn"],
)
def test_what_is_shared_has_the_same_parameters_on_both_sides(
    interface: type, kinds: list[type]
) -> None:
    shared = [name for name, each in vars(interface).items() if inspect.isfunction(each)]
    public = [name for name in shared if not name.startswith("_")]
    assert public
    for name in public:
        told = [
            {
                parameter.name: (parameter.kind, parameter.default)
                for parameter in inspect.signature(getattr(kind, name)).parameters.values()
                if parameter.name not in EMBEDDED_ONLY
            }
            for kind in (interface, *kinds)
        ]
        assert told[0] == told[1] == told[2], name


@pytest.mark.parametrize(
    ("call", "parameter"),
    [("create", "tenant"), ("open", "tools"), ("open", "unbound"), ("open_or_create", "tenant"),
     ("open_or_create", "unbound")],
)  # fmt: skip
async def test_what_only_embedded_sessions_have_is_one_clear_error_remote(
    call: str, parameter: str
) -> None:
    remote: Any = RemoteManager(None)  # type: ignore[arg-type]  # nothing is sent
    values: list[Any] = [] if call == "create" else ["s"]
    values += [] if call == "open" else [SessionConfig(model="m")]
    with pytest.raises(InvalidInput, match=f"^{parameter} is for embedded sessions only: "):
        await getattr(remote, call)(*values, **{parameter: "caller"})


@pytest.mark.parametrize("limit", [-1, 0, 1001])
async def test_a_page_of_sessions_has_one_bound_embedded_and_remote(limit: int) -> None:
    said = r"^limit is -?[0-9]+; it must be a whole number from 1 to 1,000$"
    remote: Any = RemoteManager(None)  # type: ignore[arg-type]  # nothing is sent
    async with SessionManager(provider=ScriptedProvider([])) as embedded:
        for manager in (embedded, remote):
            with pytest.raises(InvalidInput, match=said):
                await manager.list(limit=limit)
            with pytest.raises(InvalidInput, match=said):
                await manager.search("word", limit=limit)


EMBEDDED_MANAGERS = {
    "apply_retention", "close", "drain", "hand_over", "import_conversation",
    "import_conversations", "live", "open_turns", "release", "set_tenant_budget", "store",
    "tenant_spending",
}  # fmt: skip
"""What a SessionManager has beside the interface; docs/how-to/embed-sessions.md says what for."""


def test_a_session_manager_shows_the_interface_and_what_its_page_lists() -> None:
    async def shown() -> set[str]:
        async with SessionManager(provider=ScriptedProvider([])) as manager:
            return {name for name in dir(manager) if not name.startswith("_")}

    shared = {name for name in vars(ManagerInterface) if not name.startswith("_")}
    assert anyio.run(shown) == shared | EMBEDDED_MANAGERS
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "embed-sessions.md").read_text("utf-8")
    _, _, table = page.partition("| of a `SessionManager` |")
    listed = re.findall(r"^\| `(\w+)", table.partition("\n\n")[0], re.M)
    assert sorted(listed) == sorted(EMBEDDED_MANAGERS)


def test_what_a_remote_session_has_beside_the_interface_is_its_own() -> None:
    beside = {name for name in vars(RemoteSession) if not name.startswith("_")}
    assert beside - set(vars(SessionInterface)) == {"events_of", "request_outcome"}
