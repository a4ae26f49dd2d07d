"""Who watches sessions is told what happens, and can break nothing."""

from __future__ import annotations

from typing import Any

from structlog.testing import CapturingLogger

from llmsession import SessionConfig, SessionManager, Tool, ToolResult, ToolUse
from llmsession.session import SessionObserver
from llmsession.testing.scripted import ScriptedProvider, call, never, say
from llmsession.turns.spending.prices import Price
from tests.session.actors import first, settled

PRICES = {"m": Price.usd(input=1, output=10)}


class Told:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def recorded(self, session: str, record: Any) -> None:
        self.lines.append(("recorded", record.__struct_config__.tag))

    def requested(
        self, session: str, turn: int, request: Any, *, tokens: int, budget_tokens: int
    ) -> None:
        assert 0 < tokens < budget_tokens
        self.lines.append(("requested", session, turn, len(request.messages)))

    def began(self, session: str, turn: int) -> None:
        self.lines.append(("began", session, turn))

    def ended(
        self, session: str, turn: int, spent: Any, *, provider: str, stop_reason: str | None
    ) -> None:
        self.lines.append(("ended", session, turn, provider, stop_reason))

    def charged(self, session: str, spent: Any, cost_nano_usd: int | None) -> None:
        self.lines.append(("charged", session, spent.model, cost_nano_usd))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [line for line in self.lines if line[0] in kinds]


async def test_every_request_is_told_from_its_beginning_to_what_it_cost() -> None:
    told = Told()
    script = [say("let me see") + call("mine", id="c"), say("done")]
    async with SessionManager(
        provider=ScriptedProvider(script), observers=[told], prices=PRICES
    ) as manager:
        config = SessionConfig(model="m", tools=[Tool(name="mine")])
        session = await manager.create(config, session_id="s")
        turn = await session.send("go")
        await first(turn, ToolUse)
        await session.submit_tool_results([ToolResult("c", "42")])
        await turn.outcome()
    assert told.of("requested", "began", "ended", "charged") == [
        ("requested", "s", 1, 1),
        ("began", "s", 1),
        ("ended", "s", 1, "scripted", "tool_use"),
        ("charged", "s", "m", 60_000),
        ("requested", "s", 1, 3),
        ("began", "s", 1),
        ("ended", "s", 1, "scripted", "end_turn"),
        ("charged", "s", "m", 60_000),
    ]
    kinds = [line[1] for line in told.of("recorded")]
    assert kinds[0] == "turn.accepted"
    assert kinds[-1] == "turn.committed"
    assert "tools.requested" in kinds


async def test_a_request_that_is_stopped_has_an_end_without_a_stop_reason() -> None:
    told = Told()
    async with SessionManager(provider=ScriptedProvider([never()]), observers=[told]) as manager:
        session = await manager.create(SessionConfig(model="m"), session_id="s")
        await session.send("go")
        await settled()
        await session.interrupt()
    assert told.of("requested", "began", "ended") == [
        ("requested", "s", 1, 1),
        ("ended", "s", 1, "scripted", None),
    ]


class Broken(Told):
    """Raises, whatever it is told."""

    def __getattribute__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("an observer's fault")

        return fail


async def test_an_observer_that_raises_is_logged_and_breaks_nothing() -> None:
    broken, told, logger = Broken(), Told(), CapturingLogger()
    observers: list[SessionObserver] = [broken, told]
    async with SessionManager(
        provider=ScriptedProvider(["fine"]), observers=observers, logger=_Bound(logger)
    ) as manager:
        session = await manager.create(SessionConfig(model="m"))
        assert await (await session.send("go")).text() == "fine"
    assert told.of("ended")
    failed = [entry for entry in logger.calls if entry.args == ("observer.failed",)]
    assert len(failed) == len(told.lines)
    assert {entry.method_name for entry in failed} == {"error"}


class _Bound:
    """A logger that stays itself where it is bound."""

    def __init__(self, logger: CapturingLogger) -> None:
        self._logger = logger

    def bind(self, **_: Any) -> _Bound:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)
