"""Every prefix of a log is a crash: cut there, opened again and played on, a random program ends
in the history that it has when nothing dies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial

import msgspec
import pytest

from llmsession.compaction.rules.check import check_request
from llmsession.session.log.state import SessionState, fold
from llmsession.session.values.config import Recovery
from llmsession.store.memory import MemoryStore
from llmsession.testing.checker.checker import check
from llmsession.testing.recording.entries import Logged, Recording
from llmsession.turns import records as r
from llmsession.turns.receipts import settled_text
from llmsession.turns.stop import Follow, stop_rule
from tests.session.crash_programs import Player, Program, base_of, plain
from tests.session.probes import (
    after_a_crash,
    log_of,
    request_pairs,
    run_virtually,
    said,
    unpaired,
)
from tests.virtual_time import BACKENDS

QUICK_SEEDS = (0, 6, 12, 13, 14)
"""Short programs that together leave a log at every one of ``PLACES``; one compacts and thinks."""
LONG_SEEDS = range(130)


def where(state: SessionState) -> str:
    """The phase that a log leaves its session in."""
    turn = state.running()
    if turn is None:
        return "only queued" if state.open else "nothing open"
    if turn.calls:
        left = {call.runner for call in turn.unanswered}
        if not left:
            return "all calls answered"
        some = "some" if turn.answers else "none"
        return f"{some} answered, {' and '.join(sorted(left))} open"
    if not turn.step:
        return "no step"
    last = turn.staged[-1]
    if last.is_assistant and stop_rule(last.stop_reason).follow is Follow.CONTINUE:
        return "after a pause"
    return "between steps"


def lost_calls(log: Sequence[r.Record]) -> set[str]:
    """The calls whose results a crash has cost."""
    return {
        answer.call_id
        for record in log
        if isinstance(record, r.ToolsAnswered)
        for answer in record.answers
        if answer.settled == "crash"
    }


class Cuts:
    """Plays one program whole; then cuts it, and plays it on."""

    def __init__(self, program: Program, reached: Counter[str]) -> None:
        self.program = program
        self.reached = reached

    async def whole(self) -> None:
        self.player = Player(self.program, MemoryStore())
        await self.player.create()
        self.log = await log_of(self.player.store, "s")

    async def everywhere(self) -> None:
        """One crash, at each record, under both recoveries."""
        await self.whole()
        for cut in range(1, len(self.log) + 1):
            self.reached[where(fold("s", self.log[:cut]))] += 1
            await self._played_on(self.player, cut, "resume")
            await self._played_on(self.player, cut, "drop")

    async def again_and_again(self, rng: random.Random) -> None:
        """Crash after crash, each somewhere in what the last owner wrote."""
        await self.whole()
        player, since = self.player, 1
        for crash in range(1, 6):
            log = await log_of(player.store, "s")
            if since >= len(log):
                break
            cut = rng.randint(since, min(len(log), since + 12))
            self.reached[where(fold("s", log[:cut]))] += 1
            self.reached[f"{crash} crashes"] += 1
            recovery: Recovery = "drop" if rng.random() < 0.2 else "resume"
            player, since = await self._played_on(player, cut, recovery), cut + 1

    async def _played_on(self, before: Player, cut: int, recovery: Recovery) -> Player:
        old = (await log_of(before.store, "s"))[:cut]
        running = fold("s", old).running()
        player = Player(self.program, await after_a_crash(before.store, cut))
        await player.play(recovery)
        log = await log_of(player.store, "s")
        assert log[:cut] == old
        self._check_recovered(log[cut:], running.number if running else None, recovery)
        self._check_log(log)
        self._check_requests(player)
        lost = lost_calls(log)
        self._check_lost(player, log, lost, {each.id for each in _calls(old)})
        bases = {base_of(call) for call in lost}
        assert plain(player.conversation, bases) == plain(self.player.conversation, bases)
        self.reached["calls lost"] += len(lost)
        resumed_only = all(
            record.reason != "crash"
            or not fold("s", log[: record.seq - 1]).open[record.turn].started
            for record in log
            if isinstance(record, r.TurnAborted)
        )
        if resumed_only and not lost:
            # Nothing shows that anybody died: what is sent is the same, and so is the cost.
            assert player.spent == self.player.spent
            if not self.program.compacts:
                for step, requests in player.sent.items():
                    assert requests <= self.player.sent[step]
                    self.reached["requests equal"] += len(requests)
        return player

    def _check_recovered(
        self, written: Sequence[r.Record], running: int | None, recovery: Recovery
    ) -> None:
        """The turn that ran goes on under its number, or ends; nothing happens before that."""
        if running is None:
            assert not any(isinstance(record, r.TurnResumed) for record in written)
        elif recovery == "resume":
            assert isinstance(written[0], r.TurnResumed)
            assert written[0].turn == running
            ends = [each for each in written if r.is_terminal(each) and each.turn == running]
            assert len(ends) == 1
            assert getattr(ends[0], "reason", "") != "crash"
        else:
            crashed = [each for each in written if isinstance(each, r.TurnAborted)]
            assert running in [each.turn for each in crashed if each.reason == "crash"]

    @staticmethod
    def _check_log(log: Sequence[r.Record]) -> None:
        """The offline checker knows a resumed turn; numbers and ids are used once."""
        entries = [
            Logged(session="s", seq=each.seq, body=msgspec.Raw(r.encode_record(each)))
            for each in log
        ]
        # The same words are sent again on purpose.
        violations = [
            each for each in check(Recording(entries)) if "accepted twice" not in each.text
        ]
        assert violations == []
        accepted = [each.turn for each in log if isinstance(each, r.TurnAccepted)]
        assert accepted == list(range(1, len(accepted) + 1))
        ended = [each.turn for each in log if r.is_terminal(each)]
        assert sorted(ended) == accepted
        calls = [each.id for each in _calls(log)]
        assert len(set(calls)) == len(calls)

    def _check_requests(self, player: Player) -> None:
        for request in player.provider.requests:
            profile = player.provider.profile("m")
            assert check_request(request, profile) == ()
            assert unpaired(request_pairs(request)) == []
        assert unpaired(said(player.conversation)) == []

    @staticmethod
    def _check_lost(
        player: Player, log: Sequence[r.Record], lost: set[str], offered: set[str]
    ) -> None:
        """A call that a crash lost is the session's own, is said to be unknown, and never runs
        again; one of the caller's is never lost."""
        runners = {call.id: call.runner for call in _calls(log)}
        assert all(runners[call] == "session" for call in lost)
        for message in player.conversation:
            for at, result in enumerate(message.tool_results):
                if result.tool_use_id in lost:
                    assert (result.text, result.is_error) == (settled_text("crash"), True)
                    assert at in message.synthetic
        asked = Counter(
            base_of(call)
            for call, runner in runners.items()
            if runner == "session" and call not in offered
        )
        for what, times in player.ran.items():
            assert times <= asked[f"call-{what}"]


def _calls(log: Sequence[r.Record]) -> list[r.PendingCall]:
    return [call for each in log if isinstance(each, r.ToolsRequested) for call in each.calls]


def _everywhere(seeds: Sequence[int]) -> Counter[str]:
    reached: Counter[str] = Counter()
    for seed in seeds:
        run_virtually(BACKENDS[seed % 2], Cuts(Program(seed), reached).everywhere)
    print(dict(sorted(reached.items())))
    return reached


PLACES = (
    "nothing open",
    "no step",
    "none answered, caller open",
    "none answered, caller and session open",
    "some answered, caller open",
    "all calls answered",
    "between steps",
    "after a pause",
)


@pytest.mark.timeout(60)
def test_a_program_that_is_cut_after_any_record_ends_as_if_nothing_had_died() -> None:
    reached = _everywhere(QUICK_SEEDS)
    assert {place for place in PLACES if reached[place] < 3} == set()
    assert min(reached["calls lost"], reached["requests equal"]) >= 50


@pytest.mark.timeout(60)
def test_a_program_may_be_cut_again_and_again_and_ends_as_if_nothing_had_died() -> None:
    reached: Counter[str] = Counter()
    for seed in range(16):
        cuts = Cuts(Program(seed), reached)
        run_virtually(BACKENDS[seed % 2], partial(cuts.again_and_again, random.Random(seed)))
    print(dict(sorted(reached.items())))
    assert reached["5 crashes"] >= 10


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_programs_that_are_cut_after_any_record_end_as_if_nothing_had_died() -> None:
    reached = _everywhere(LONG_SEEDS)
    assert {place for place in (*PLACES, "only queued") if reached[place] < 20} == set()
