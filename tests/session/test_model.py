"""Random programs against a plain model: after each operation both say the same."""

from __future__ import annotations

import gc
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmsession.errors import (
    DuplicateToolResult,
    ProviderError,
    SessionBusy,
    TurnNotOpen,
    UnknownToolCall,
)
from llmsession.session.handles.session import LLMSession, Turn
from llmsession.session.log.state import fold
from llmsession.session.manager import SessionManager, runtime_of
from llmsession.session.values.config import SessionConfig, Tool, ToolResult
from llmsession.session.values.outcome import InterruptOutcome, TurnOutcome
from llmsession.turns.machine import TurnLimits
from llmsession.turns.messages import Message
from llmsession.turns.request import Profile
from llmsession.turns.stream import BlockDelta, BlockStarted, BlockStopped, ReplyEnded, ReplyStarted
from tests.session import plain_model as m
from tests.session.probes import (
    GatedProvider,
    assert_request_is_sound,
    differences,
    live_state,
    log_of,
    run_virtually,
    said,
    settle,
)
from tests.virtual_time import BACKENDS

POLICIES = ("drop_turn", "keep_steps", "keep_text")
MODES = ("queue", "queue", "interrupt", "steer", "steer", "steer", "reject")
_CALLS = re.compile(
    r"- (\w+) \(([\w, ]+?)(?: and (\d+) more like them)?\): (finished|failed|started)", re.ASCII
)
_STATUS = {"finished": "finished", "failed": "failed", "started": "unknown"}


def plain(messages: tuple[Message, ...]) -> list[tuple[str, list[m.Block]]]:
    """A conversation in the model's words."""
    return [(role, [_plain_block(block) for block in blocks]) for role, blocks in said(messages)]


def _plain_block(block: dict[str, Any]) -> m.Block:
    match block["type"]:
        case "tool_use":
            return ("use", block["id"])
        case "tool_result":
            text = block["content"]
            if text.startswith(m.NO_RESULT):
                why = next(
                    why for why in ("stopped", "deadline", "limit", "given up") if why in text
                )
                text = f"{m.NO_RESULT}: {why}"
            return ("result", block["tool_use_id"], block.get("is_error", False), text)
        case _ if block["text"].startswith("Note from the session"):
            found = _CALLS.findall(block["text"])
            return (
                "receipt",
                tuple(
                    (tool, _STATUS[status], tuple(ids.split(", ")), int(more or 0))
                    for tool, ids, more, status in found
                ),
            )
        case _:
            return ("text", block["text"])


async def _slow() -> str:
    await anyio.sleep(m.SLOW_S)
    return "slow ran"


class Program:
    """One run: draws operations from *choices*, does each to the session and to the model."""

    def __init__(self, choices: Iterator[int], *, on_failure: str) -> None:
        self.choices = choices
        self.model = m.Model(on_failure=on_failure)
        # A paused reply of text is sent back as it is, which a model without prefill refuses.
        self.provider = GatedProvider(Profile(name="gated", prefill=True))
        self.config = SessionConfig(
            model="m",
            system="s0",
            tools=[Tool(name="slow", run=_slow), Tool(name="mine")],
            limits=TurnLimits(max_steps=m.MAX_STEPS, max_seconds=m.MAX_SECONDS, max_retries=1),
            tool_deadline_s=m.MINE_DEADLINE_S,
            on_failure=on_failure,  # type: ignore[arg-type]  # one of the literals
        )
        self.outcomes: dict[int, TurnOutcome] = {}
        self.started_reply = False
        self.words = 0
        self.asked: dict[int, str] = {}
        """What was said first in each turn, as it stands in a record."""
        self.base: tuple[Message, ...] = ()

    def pick(self, options: Any) -> Any:
        return options[next(self.choices) % len(options)]

    async def run(self) -> Counter[str]:
        async with (
            SessionManager(provider=self.provider) as manager,
            anyio.create_task_group() as group,
        ):
            self.manager, self.group = manager, group
            self.session: LLMSession = await manager.create(self.config, session_id="s")
            try:
                while True:
                    await self._operation()
            except StopIteration:
                pass
            except RuntimeError as error:  # what a coroutine makes of a StopIteration
                if not isinstance(error.__cause__, StopIteration):
                    raise
            group.cancel_scope.cancel()
        assert self.provider.opened == self.provider.closed
        return self.model.deep

    async def _operation(self) -> None:
        turn = self.model.running
        operations: list[Callable[[], Any]] = [self._send, self._interrupt, self._interrupt]
        operations += [self._time, self._configure, self._stray_result]
        if turn is None:
            operations += [self._send] * 6 + [self._reopen, self._compact, self._label]
            operations += [self._rewind, self._forget, self._fork, self._fork]
            operations += [self.pick((self._clear, self._purge, self._rewind))]
        elif turn.waits == "model":
            operations += [self._send, self._send] + [self._deltas, self._asks] * 4
            operations += [self._reply_ends] * 3 + [self._breaks] * 2
        elif turn.waits == "tools":
            operations += [self._send, self._compact] + [self._submit] * 4
        operation = self.pick(operations)
        self.model.now = anyio.current_time()
        requests = self.model.requests
        await operation()
        await settle()
        self.model.time_passes(anyio.current_time())
        if self.model.requests != requests:
            self.started_reply = False
        await self._compare()

    # Operations.

    async def _send(self) -> None:
        mode = self.pick(MODES)
        self.words += 1
        text = f"ask {self.words}"
        number = self.model.send(text, mode)
        if number is None:
            with pytest.raises(SessionBusy):
                await self.session.send(text, when_busy=mode)
            return
        turn = await self.session.send(text, when_busy=mode)
        assert turn.id.number == number
        self.asked.setdefault(number, f'"{text}"')
        self.group.start_soon(self._await_outcome, turn)

    async def _await_outcome(self, turn: Turn) -> None:
        outcome = await turn.outcome()
        known = self.outcomes.setdefault(turn.id.number, outcome)
        assert known == outcome

    def _open_reply(self) -> None:
        if not self.started_reply:
            self.started_reply = True
            opened = msgspec.Raw(b'{"type":"text","text":""}')
            self.provider.say(ReplyStarted("m"), BlockStarted(0, opened))

    async def _deltas(self) -> None:
        self._open_reply()
        for _ in range(1 + self.pick(range(3))):
            self.words += 1
            self.model.deltas(f"w{self.words}.")
            self.provider.say(BlockDelta(0, "text", f"w{self.words}."))

    async def _reply_ends(self) -> None:
        self._open_reply()
        stop = self.pick(
            ("end_turn", "end_turn", "end_turn", "max_tokens", "pause_turn", "refusal")
        )
        self.provider.say(BlockStopped(0), ReplyEnded(stop))
        self.model.reply_ends(stop)

    async def _asks(self) -> None:
        self._open_reply()
        self.provider.say(BlockStopped(0))
        tools = [(f"c{n}", self.pick(("mine", "slow"))) for n in range(1 + self.pick(range(3)))]
        for index, (call, tool) in enumerate(tools, start=1):
            raw = f'{{"type":"tool_use","id":"{call}","name":"{tool}","input":{{}}}}'
            self.provider.say(BlockStarted(index, msgspec.Raw(raw.encode())), BlockStopped(index))
        self.provider.say(ReplyEnded("tool_use"))
        self.model.asks(tools)

    async def _breaks(self) -> None:
        retryable = self.pick((True, False))
        broken = ProviderError("by the test", kind="retryable" if retryable else "fatal")
        self.provider.say(broken)
        self.model.breaks(retryable=retryable)
        self.started_reply = False

    async def _submit(self) -> None:
        turn = self.model.running
        assert turn is not None
        mine = [call for call, (tool, _) in turn.calls.items() if tool == "mine"]
        if not mine:
            return
        chosen = mine[: 1 + self.pick(range(len(mine)))]
        failed = self.pick((False, False, True))
        results = [ToolResult(call, f"r {call}", is_error=failed) for call in reversed(chosen)]
        await self.session.submit_tool_results(results)
        for call in reversed(chosen):
            self.model.result(call, f"r {call}", is_error=failed)

    async def _stray_result(self) -> None:
        """A result that nothing waits for is refused by name and changes nothing."""
        wanted = set(self.model.running.calls) if self.model.running else set()
        stray = [*sorted(self.model.used.keys() - wanted), "never"]
        call = self.pick(stray)
        with pytest.raises((UnknownToolCall, TurnNotOpen, DuplicateToolResult)):
            await self.session.submit_tool_results([ToolResult(call, "late")])

    async def _interrupt(self) -> None:
        running = self.model.running
        numbers: list[int | None] = [None, None, self.pick(range(1, self.model.last + 2))]
        number = running.number if running and self.pick(range(3)) == 0 else self.pick(numbers)
        policy = self.pick(POLICIES)
        expected, ended = self.model.interrupt(number, policy)
        answer: InterruptOutcome = await self.session.interrupt(number, policy=policy)
        if expected == "not_running" and ended:
            expected = "aborted"
        assert answer.result == expected
        assert sorted(outcome.turn.number for outcome in answer.turns) == sorted(ended)

    async def _time(self) -> None:
        await anyio.sleep(self.pick((0.61, 1.57, 12.3, 40.7)))

    async def _configure(self) -> None:
        self.words += 1
        system = f"s{self.words}"
        self.model.configure(system)
        self.group.start_soon(partial(self.session.configure, system=system))

    async def _clear(self) -> None:
        assert self.model.clear()
        await self.session.clear()
        self.base = ()

    async def _rewind(self) -> None:
        to = self.pick([0, *dict.fromkeys(self.model.turns)])
        self.model.rewind(to)
        await self.session.rewind(to)
        left = self.session.conversation()
        assert all(old is new for old, new in zip(self.base, left, strict=False))
        self.base = left
        self.model.deep["rewound"] += 1

    async def _forget(self) -> None:
        places = list(dict.fromkeys(self.model.turns))
        before = self.pick([0, *places, *places])
        self.model.forget(before)
        # A moment that is not yet takes all that there is.
        await self.session.forget(before or 1e12)
        self.model.deep["forgotten"] += 1
        await self._compare_forgotten()

    async def _purge(self) -> None:
        self.model.purge()
        await self.session.clear(purge=True)
        self.model.deep["purged"] += 1
        await self._compare_forgotten()

    async def _compare_forgotten(self) -> None:
        """What was asked in a forgotten turn is in no body of the log."""
        self.base = self.session.conversation()
        bodies = b"".join([each.body for each in await self.manager.store.read(self.session.id)])
        assert all(self.asked[turn].encode() not in bodies for turn in self.model.forgotten)

    async def _label(self) -> None:
        self.words += 1
        await self.session.label({"word": f"{self.words}"})
        assert self.session.labels == {"word": f"{self.words}"}

    async def _fork(self) -> None:
        """The program goes on with the fork."""
        at = self.pick([None, *self.model.at_commit, *self.model.at_commit])
        fork = await self.session.fork(at)
        self.model = self.model.fork(at)
        assert fork.status().phase == "idle"
        self.session, self.base = fork, fork.conversation()
        self.outcomes = {n: self.outcomes[n] for n in self.model.ended}
        self.asked = {n: text for n, text in self.asked.items() if n <= self.model.last}
        self.model.deep["forked"] += 1

    async def _compact(self) -> None:
        await self.session.compact()

    async def _reopen(self) -> None:
        name = self.session.id
        del self.session
        await settle()
        gc.collect()  # errors that were raised hold the frames that held the handle
        assert await runtime_of(self.manager).evict_idle() >= 1
        assert name not in self.manager.live
        self.model.deep["evicted"] += 1
        self.session = await self.manager.open(name, tools=[Tool(name="slow", run=_slow)])
        self.base = self.session.conversation()

    # What both must agree on.

    async def _compare(self) -> None:
        model, session, status = self.model, self.session, self.session.status()
        history = session.conversation()
        assert plain(history) == model.committed
        assert all(old is new for old, new in zip(self.base, history, strict=False))
        if len(history) == len(self.base):
            assert history is self.base or not history
        self.base = history
        assert plain(session.conversation(include_open=True)) == model.committed + model.staged
        assert {n: (o.status, o.stop_reason) for n, o in self.outcomes.items()} == model.ended
        for number, steers in model.returned.items():
            unread = [
                msgspec.json.decode(raw)[0]["text"] for raw in self.outcomes[number].unread_steers
            ]
            assert unread == steers
        assert status.queued == len(model.queue)
        assert (status.turn.number if status.turn else None) == (
            model.running.number if model.running else None
        )
        assert (status.head.number if status.head else None) == model.head
        assert session.config.system == model.system
        pending = [[(c.id, c.status) for c in p.calls] for p in live_state(session).receipts]
        assert pending == [calls for _, calls in model.receipts]
        assert status.generation == model.generation
        assert len(self.provider.requests) == model.requests
        for request in self.provider.requests[-2:]:
            assert_request_is_sound(request, self.provider.profile("m"))
        folded = fold(session.id, await log_of(self.manager.store, session.id))
        assert differences(live_state(session), folded) == []


def play(choices: Iterator[int], *, backend: str, on_failure: str) -> Counter[str]:
    return run_virtually(backend, Program(choices, on_failure=on_failure).run)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    choices=st.lists(st.integers(0, 719), min_size=20, max_size=120),
    on_failure=st.sampled_from(("keep_steps", "drop")),
)
def test_a_session_and_a_plain_model_agree_after_every_operation(
    backend: str, choices: list[int], on_failure: str
) -> None:
    play(iter(choices), backend=backend, on_failure=on_failure)


def seeded_play(seeds: range, operations: int) -> Counter[str]:
    """In how many of the runs each deep state was reached."""
    reached: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        choices = iter([rng.randrange(720) for _ in range(operations)])
        deep = play(
            choices,
            backend=BACKENDS[seed % 2],
            on_failure="drop" if seed % 4 == 3 else "keep_steps",
        )
        reached.update(deep.keys())
    return reached


MIN_SHARE = {
    "abort from tools": 0.3,
    "keep commit": 0.5,
    "steer continuation": 0.15,
    "queue jump": 0.05,
    "limit": 0.3,
    "receipt carried": 0.4,
    "deadline": 0.12,
    "evicted": 0.5,
    "given up, kept": 0.08,
    "refusal": 0.2,
    "rewound": 0.5,
    "receipts again": 0.05,
    "forgotten": 0.3,
    "receipt rewritten": 0.05,
    "purged": 0.3,
    "forked": 0.5,
    "fork of what was forgotten": 0.05,
}
"""Of runs of 200 choices, about 65 operations: so many reach each state, or the suite is blind."""


@pytest.mark.timeout(600)
def test_random_programs_reach_the_deep_states_and_still_agree() -> None:
    seeds = range(16, 26)  # of so few not every ten reach each of the states
    reached = seeded_play(seeds, 200)
    print({name: f"{reached[name] / len(seeds):.0%}" for name in MIN_SHARE})
    assert [name for name, share in MIN_SHARE.items() if reached[name] < share * len(seeds)] == []


@pytest.mark.long
def test_a_thousand_long_random_programs_agree_with_the_plain_model() -> None:
    reached = seeded_play(range(1000, 2000), 400)
    assert reached.keys() >= MIN_SHARE.keys()
