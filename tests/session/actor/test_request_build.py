"""The build of a request: its stages, what each waits for, and what an outdated build does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from llmsession.session.actor.request_build import NEXT_STAGES, RequestBuild, RequestBuilds, Stage
from llmsession.session.compacting.compactor import INLINE_MESSAGES
from llmsession.session.core.turn_run import Run
from llmsession.turns import events as e
from llmsession.turns.machine import Phase, step, tag_of
from llmsession.turns.records import ExceededBudget

S = Stage
FIRST_CHECKS = [S.SPENDING, S.COMPACTING, S.PREPARING]
ALL_CHECKS = [*FIRST_CHECKS, S.COUNTING, S.CHECKING]


class FakeSession:
    """What a build sees of its session. Everything that takes time is a call in ``waits``, which
    the test makes. ``calls`` are the calls that change something, in order."""

    def __init__(self) -> None:
        self.tokens = 10
        self.violations: tuple[Any, ...] = ()
        self.messages: tuple[str, ...] = ("hello",)
        self.exceeded: ExceededBudget | None = None
        self.breaks_in: str | None = None
        self.written: list[int] = []
        """At which calls of ``apply_if_ready`` a compaction is being written."""
        self.kept_small: list[int] = []
        """At which calls of ``keep_limit`` the request waits for a plan."""
        self.is_applying = self.is_cold = False
        self.has_room = True
        self.events: list[e.Event] = []
        self.calls: list[str] = []
        self.waits: dict[str, Callable[[], None]] = {}
        self.builds = self._builds()

    def _builds(self) -> RequestBuilds:
        fake = cast(Any, self)
        builds = RequestBuilds(core=fake, compactor=fake, works=fake, feed=self.feed)
        builds.reserve = self.reserve  # type: ignore[method-assign]
        return builds

    def reserve(self, go_on: Callable[[str], None]) -> None:
        self._call("reserve")

        def reserved() -> None:
            self.has_room = True
            go_on("")

        self.waits["slice"] = reserved
        self.waits["no store"] = partial(go_on, "the disk is gone")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.breaks_in == name:
            raise ZeroDivisionError(name)

    # As the core.

    budget_tokens = 100
    suggests_new_session = False
    session = "s"
    config = SimpleNamespace(
        budget=None, on_failure="keep", compaction=SimpleNamespace(warning=None)
    )

    @property
    def account(self) -> Any:
        def exceeded(budget: None) -> ExceededBudget | None:
            self._call("check budgets")
            return self.exceeded

        return SimpleNamespace(exceeded=exceeded, has_room=self.has_room, make_room=None)

    @property
    def state(self) -> Any:
        return SimpleNamespace(
            context_messages=lambda: self.messages,
            view="v",
            reported=None,
            suggests_new_session=self.suggests_new_session,
        )

    @property
    def builder(self) -> Any:
        def build(*_: Any) -> Any:
            self._call("build")
            size = SimpleNamespace(tokens=self.tokens)
            return SimpleNamespace(
                tokens=self.tokens, size=size, violations=self.violations, request="request"
            )

        return SimpleNamespace(is_cold=self.is_cold, build=build)

    @property
    def log(self) -> Any:
        return SimpleNamespace(**dict.fromkeys(("event", "bug", "trouble"), lambda *_, **__: None))

    @property
    def journal(self) -> Any:
        return SimpleNamespace(write=lambda record: self._call("warn"))

    def counted(self, size: Any) -> None: ...

    def take_warmed(self, warmed: Any, old: Any) -> None: ...

    def warm(self, name: str, messages: Any, view: Any, warmed: Any, *, trouble: str) -> None:
        self._call("warm")
        self.waits["thread"] = lambda: warmed(None)

    # As the compactor.

    def apply_if_ready(self) -> None:
        self._call("apply")
        self.is_applying = self.calls.count("apply") in self.written

    def keep_limit(self, size: Any) -> None:
        self._call("keep")
        self.is_applying = self.calls.count("keep") in self.kept_small

    def consider(self, size: Any) -> None:
        self._call("consider")

    def force(self, size: Any, limit: int, *, overflow: bool, exhausted: Any) -> None:
        self._call(f"shrink to {limit}")
        self.waits["nothing to free"] = exhausted

    # As the works and the runner.

    def after(self, run: Run, name: str, delay_s: float, fire: Callable[[], None]) -> None:
        self.waits["delay"] = fire

    def feed(self, run: Run, event: e.Event) -> None:
        self.events.append(event)
        run.turn, _ = step(run.turn, event)

    # For the tests.

    def start(self, **effect: Any) -> tuple[Run, RequestBuild]:
        """A new turn's first build; *effect* is what its order has beside the tag."""
        run = Run(1, 1)
        run.turn, (ordered,) = step(run.turn, e.Started())
        assert isinstance(ordered, e.BuildContext)
        self.builds.start(run, msgspec.structs.replace(ordered, **effect))
        build = self.builds.current
        return run, cast(RequestBuild, build)

    def wait_for(self, what: str) -> None:
        self.waits.pop(what)()

    def compacted(self) -> None:
        """The compaction that was being written is durable."""
        self.is_applying = False
        self.builds.resume()

    @property
    def event(self) -> str:
        (event,) = self.events
        return type(event).__name__


def delayed(session: FakeSession) -> None:
    session.start(delay_s=5)


def shrunk(session: FakeSession) -> None:
    session.tokens = 101
    session.start()
    session.tokens = 99
    session.compacted()


def set_up(**values: Any) -> Callable[[FakeSession], None]:
    """The session with *values*, and a build that starts in it."""

    def run(session: FakeSession) -> None:
        for name, value in values.items():
            setattr(session, name, value)
        session.start()

    return run


def then(first: Callable[[FakeSession], None], *waits: str) -> Callable[[FakeSession], None]:
    def run(session: FakeSession) -> None:
        first(session)
        for name in waits:
            session.compacted() if name == "compaction" else session.wait_for(name)

    return run


SPENT = ExceededBudget(whose="session", name="s", unit="tokens", limit=10, spent=10)
LONG = ("hello",) * (INLINE_MESSAGES + 1)
SCENARIOS: dict[str, tuple[Callable[[FakeSession], None], list[Stage], str]] = {
    "nothing to wait for": (set_up(), [*ALL_CHECKS, S.SENT], "ContextBuilt"),
    "a delay": (then(delayed, "delay"), [*ALL_CHECKS, S.SENT], "ContextBuilt"),
    "a budget is spent": (set_up(exceeded=SPENT), [S.SPENDING, S.FAILED], "GaveUpDropped"),
    "a slice of a shared budget": (
        then(set_up(has_room=False), "slice"),
        [S.SPENDING, S.RESERVING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "a shared budget that cannot be asked for": (
        then(set_up(has_room=False), "no store"),
        [S.SPENDING, S.RESERVING, S.FAILED],
        "GaveUpDropped",
    ),
    "a compaction is being written": (
        then(set_up(written=[1]), "compaction"),
        [S.SPENDING, S.COMPACTING, S.WAITING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "the count lets a plan be written": (
        then(set_up(written=[2]), "compaction"),
        [*FIRST_CHECKS, S.COUNTING, S.WAITING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "the policy keeps a limit of its own, once for each request": (
        then(set_up(kept_small=[1, 2]), "compaction"),
        [*FIRST_CHECKS, S.COUNTING, S.WAITING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "a long context that is not known": (
        then(set_up(is_cold=True, messages=LONG), "thread"),
        [*FIRST_CHECKS, S.WARMING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "a short context that is not known": (
        set_up(is_cold=True, messages=LONG[1:]),
        [*ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "too large, and made smaller": (
        shrunk,
        [*ALL_CHECKS, S.SHRINKING, *ALL_CHECKS, S.SENT],
        "ContextBuilt",
    ),
    "too large, and nothing is left to free": (
        then(set_up(tokens=101), "nothing to free"),
        [*ALL_CHECKS, S.SHRINKING, S.FAILED],
        "ContextOverflowed",
    ),
    "a rule is broken": (
        set_up(violations=(SimpleNamespace(rule="V1", where="here", text="wrong"),)),
        [*ALL_CHECKS, S.FAILED],
        "GaveUpDropped",
    ),
}


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """The stages that builds enter."""
    stages: list[Stage] = []
    enter = RequestBuild._enter

    def spy(build: RequestBuild, stage: Stage) -> None:
        stages.append(stage)
        enter(build, stage)

    monkeypatch.setattr(RequestBuild, "_enter", spy)
    return stages


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_build_goes_through_its_stages_and_feeds_one_event(
    name: str, entered: list[Stage]
) -> None:
    session = FakeSession()
    play, stages, event = SCENARIOS[name]
    play(session)
    assert entered == stages
    assert session.event == event
    assert session.builds.current is None, "a build that is over keeps its turn in memory"


def test_the_table_has_the_ways_that_builds_go_and_no_other() -> None:
    ways = {way for _, stages, _ in SCENARIOS.values() for way in pairwise([S.DELAYED, *stages])}
    assert ways == {(stage, after) for stage, all in NEXT_STAGES.items() for after in all}
    assert set(NEXT_STAGES) == set(Stage)


def test_a_stage_that_may_not_follow_is_refused() -> None:
    _, build = FakeSession().start(delay_s=1)
    with pytest.raises(AssertionError, match=r"SENT after .*DELAYED"):
        build._enter(S.SENT)


# What a build waits for: how it is set up, and what ends the wait.
WAITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "delay": ({}, {"delay_s": 5}, "delay"),
    "compaction": ({"written": [1]}, {}, "compaction"),
    "slice": ({"has_room": False}, {}, "slice"),
    "no store": ({"has_room": False}, {}, "no store"),
    "thread": ({"is_cold": True, "messages": LONG}, {}, "thread"),
    "exhausted": ({"tokens": 101}, {}, "nothing to free"),
    "shrunk": ({"tokens": 101}, {}, "compaction"),
}


def waiting(name: str) -> tuple[FakeSession, Run, Callable[[], None]]:
    """A session whose build waits, its run, and what ends the wait."""
    session, (values, effect, end) = FakeSession(), WAITS[name]
    for attribute, value in values.items():
        setattr(session, attribute, value)
    run, build = session.start(**effect)
    if end == "compaction":
        session.is_applying = False
        return session, run, build.begin
    return session, run, session.waits.pop(end)


def stop(session: FakeSession, run: Run) -> None:
    run.turn, _ = step(run.turn, e.DropRequested(reason="interrupt"))
    session.builds.stop(run)


def take_over(session: FakeSession, run: Run) -> None:
    run.turn, _ = step(run.turn, e.Fenced())


def start_another(session: FakeSession, run: Run) -> None:
    session.builds.start(run, e.BuildContext(tag=tag_of(run.turn), delay_s=9))


@pytest.mark.parametrize("outdate", [stop, take_over, start_another])
@pytest.mark.parametrize("name", WAITS)
def test_a_build_does_nothing_more_once_its_turn_or_a_newer_one_has_outdated_it(
    name: str, outdate: Callable[[FakeSession, Run], None]
) -> None:
    session, run, end_wait = waiting(name)
    outdate(session, run)
    calls = list(session.calls)
    end_wait()
    assert (session.events, session.calls) == ([], calls)


def test_an_outdated_build_that_cannot_shrink_lets_the_build_that_waits_go_on() -> None:
    session, run, exhausted = waiting("exhausted")
    session.builds.stop(run)
    session.tokens, session.written = 10, [session.calls.count("apply") + 1]
    later, build = session.start()
    assert build.stage is S.WAITING
    session.is_applying = False
    exhausted()
    assert (build.stage, later.turn.phase) == (S.SENT, Phase.STREAMING)


def test_the_end_of_a_compaction_does_not_end_other_waits() -> None:
    for name in ("delay", "thread"):
        session, _, _ = waiting(name)
        calls = list(session.calls)
        session.compacted()
        assert session.calls == calls


def test_a_thread_that_could_not_build_a_context_is_asked_again_only_after_a_compaction() -> None:
    session = FakeSession()
    session.is_cold, session.messages, session.written = True, LONG, [2]
    session.start()
    session.wait_for("thread")
    assert session.calls.count("warm") == 1
    session.compacted()
    assert session.calls.count("warm") == 2
    session.wait_for("thread")
    assert session.event == "ContextBuilt"
    assert session.calls.count("warm") == 2


def test_a_request_that_the_provider_found_too_large_has_to_be_smaller_than_it_was() -> None:
    session = FakeSession()
    session.tokens = 50
    run, _ = session.start()
    run.turn, (effect,) = step(run.turn, e.StreamOverflowed(tag=tag_of(run.turn)))
    assert isinstance(effect, e.BuildContext)
    session.builds.start(run, effect)
    assert session.calls[-1] == "shrink to 49"


@pytest.mark.parametrize("call", ["build", "shrink to 100", "consider"])
def test_a_bug_in_what_makes_the_request_ends_the_turn(call: str) -> None:
    session = FakeSession()
    session.breaks_in, session.tokens = call, 101 if "shrink" in call else 10
    session.start()
    assert session.event == "GaveUpDropped"
    assert session.builds.current is None


@pytest.mark.parametrize("call", ["check budgets", "apply"])
def test_a_bug_in_what_comes_before_is_left_to_the_actor(call: str) -> None:
    session = FakeSession()
    session.breaks_in = call
    with pytest.raises(ZeroDivisionError):
        session.start()
    assert session.events == []


def test_a_large_context_is_warned_of_once_until_it_is_smaller() -> None:
    session = FakeSession()
    warnings = []
    for session.tokens in (89, 90, 95, 89, 90):
        session.start()
        warnings.append(session.calls.count("warn"))
    assert warnings == [0, 1, 1, 1, 2]
    # A compaction has suggested a new session: told whatever the size is.
    session.tokens, session.suggests_new_session = 50, True
    session.start()
    assert session.calls.count("warn") == 3
