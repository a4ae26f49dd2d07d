"""What a session should be, in plain lists: committed, staged, a queue. It knows no phases.

It is written from the promises to users, not from the session's code: a turn is a list of
messages, an interrupt throws it away or keeps a part of it, time fires what is due.
Messages are (role, blocks); a block is a tuple: ("text", words), ("use", id),
("result", id, is_error, text) or ("receipt", ((tool, status, ids, more), ...)).
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from typing import Any

__all__ = ["MAX_SECONDS", "MAX_STEPS", "MINE_DEADLINE_S", "RETRY_S", "SLOW_S", "Model", "OpenModel"]

SLOW_S = 1.0
MINE_DEADLINE_S = 10.0
MAX_SECONDS = 30.0
MAX_STEPS = 3
RETRY_S = 0.5
NO_RESULT = "No result"

Block = tuple[Any, ...]
Receipt = tuple[int, list[tuple[str, str]]]
"""A dropped turn, and its calls with how they ended."""


class OpenModel:
    """The running turn. ``waits`` is "model", "tools" or "retry"."""

    def __init__(self, number: int, text: str, receipts: list[Receipt], note: Block, now: float):
        self.number = number
        self.text = text
        self.carried = len(receipts)
        blocks: list[Block] = [("text", text)]
        if receipts:
            blocks.append(note)
        self.staged: list[tuple[str, list[Block]]] = [("user", blocks)]
        self.waits = "model"
        self.step = 1
        self.retried = False
        self.reply = ""
        self.steers: list[str] = []
        self.complete = False
        """Has a step ended, or asked for its tools?"""
        self.calls: dict[str, tuple[str, float]] = {}
        """The open calls of this step: the tool, and when it is due."""
        self.results: dict[str, Block] = {}
        self.order: list[str] = []
        self.statuses: dict[str, str] = {}
        self.limit_at = now + MAX_SECONDS
        self.retry_at = math.inf


class Model:
    def __init__(self, *, on_failure: str) -> None:
        self.on_failure = on_failure
        self.committed: list[tuple[str, list[Block]]] = []
        self.turns: list[int] = []
        """The turn of each committed message."""
        self.generation = 1
        self.carried: dict[int, list[Receipt]] = {}
        """The receipts that the message of a turn carries."""
        self.forgotten: set[int] = set()
        self.at_commit: dict[int, Model] = {}
        """What all was when a turn was committed: what a fork there begins with."""
        self.running: OpenModel | None = None
        self.queue: list[tuple[int, str]] = []
        self.last = 0
        self.head: int | None = None
        self.ended: dict[int, tuple[str, str]] = {}
        self.returned: dict[int, list[str]] = {}
        """The steers that came back unread, by turn."""
        self.receipts: list[Receipt] = []
        self.used: dict[str, str] = {}
        """Every call id there was, and its tool."""
        self.requests = 0
        self.system = "s0"
        self.systems: list[str] = []
        self.now = 0.0
        self.deep: Counter[str] = Counter()

    # Sends.

    def send(self, text: str, mode: str) -> int | None:
        """The number of the turn that answers it; None if it is refused."""
        turn = self.running
        if turn is None:
            self.last += 1
            self._start(self.last, text)
            return self.last
        if mode == "reject":
            return None
        if mode == "steer":
            turn.steers.append(text)
            return turn.number
        self.last += 1
        number = self.last
        if mode == "interrupt":
            if self.queue:
                self.deep["queue jump"] += 1
            self.queue.insert(0, (number, text))
            self._drop("aborted", "replaced")
        else:
            self.queue.append((number, text))
        return number

    def _start(self, number: int, text: str) -> None:
        note = self._note(self.receipts)
        self.running = OpenModel(number, text, self.receipts, note, self.now)
        self.carried[number] = list(self.receipts)
        if self.running.carried:
            self.deep["receipt carried"] += 1
        self.requests += 1

    def _note(self, receipts: list[Receipt]) -> Block:
        """Calls that read alike share a line, which names the first eight."""
        lines: dict[tuple[str, str], list[str]] = {}
        for call, status in (pair for _, calls in receipts for pair in calls):
            lines.setdefault((self.used[call], status), []).append(call)
        return (
            "receipt",
            tuple((*key, tuple(ids[:8]), max(0, len(ids) - 8)) for key, ids in lines.items()),
        )

    # What the model says.

    def deltas(self, words: str) -> None:
        self._turn().reply += words

    def reply_ends(self, stop_reason: str) -> None:
        turn = self._turn()
        if stop_reason == "refusal":
            self.deep["refusal"] += 1
            self._drop("failed", "refusal")
            return
        if turn.reply or stop_reason == "pause_turn":  # a paused reply is kept as it is
            turn.staged.append(("assistant", [("text", turn.reply)]))
        if stop_reason == "pause_turn" and not turn.reply:
            self._step_ends([])
        elif turn.steers:
            self.deep["steer continuation"] += 1
            self._step_ends([])
        else:
            self._commit(stop_reason)

    def asks(self, tools: list[tuple[str, str]]) -> None:
        """*tools* are (id, tool): an id that was used gets the next free suffix."""
        turn = self._turn()
        blocks: list[Block] = [("text", turn.reply)]
        for wanted, tool in tools:
            unique, suffix = wanted, 2
            while unique in self.used:
                unique, suffix = f"{wanted}_{suffix}", suffix + 1
            self.used[unique] = tool
            blocks.append(("use", unique))
            due = self.now + (SLOW_S if tool == "slow" else MINE_DEADLINE_S)
            turn.calls[unique] = (tool, due)
            turn.statuses[unique] = "unknown"
        turn.order = list(turn.calls)
        turn.staged.append(("assistant", blocks))
        turn.complete, turn.waits, turn.reply = True, "tools", ""

    def breaks(self, *, retryable: bool) -> None:
        turn = self._turn()
        turn.reply = ""
        if retryable and not turn.retried:
            turn.retried, turn.waits, turn.retry_at = True, "retry", self.now + RETRY_S
        elif self.on_failure == "keep_steps" and turn.complete:
            self.deep["given up, kept"] += 1
            self._commit("error")
        else:
            self._drop("failed", "retryable" if retryable else "fatal")

    # Results and time.

    def result(self, call: str, text: str, *, is_error: bool = False) -> None:
        turn = self._turn()
        del turn.calls[call]
        turn.results[call] = ("result", call, is_error, text)
        turn.statuses[call] = "failed" if is_error else "finished"
        if not turn.calls:
            answers = [turn.results[each] for each in turn.order]
            turn.results = {}
            self._step_ends(answers)

    def _step_ends(self, answers: list[Block]) -> None:
        turn = self._turn()
        blocks = answers + [("text", steer) for steer in turn.steers]
        turn.steers, turn.reply, turn.complete = [], "", True
        if blocks:
            turn.staged.append(("user", blocks))
        if turn.step >= MAX_STEPS:
            self.deep["limit"] += 1
            self._commit("max_steps")
            return
        turn.step += 1
        turn.waits, turn.retried = "model", False
        self.requests += 1

    def time_passes(self, until: float) -> None:
        """Everything that is due by *until* happens, in order."""
        while self.running is not None and self._next_due()[0] <= until:
            self.now, what = self._next_due()
            turn = self._turn()
            if what == "limit":
                self.deep["limit"] += 1
                if turn.complete:
                    self._keep("max_seconds", text=False)
                else:
                    self._drop("failed", "max_seconds")
            elif what == "retry":
                turn.waits, turn.retry_at = "model", math.inf
                self.requests += 1
            elif turn.calls[what][0] == "slow":
                self.result(what, "slow ran")
            else:
                self.deep["deadline"] += 1
                self.result(what, f"{NO_RESULT}: deadline", is_error=True)
                turn.statuses[what] = "unknown"
        self.now = until

    def _next_due(self) -> tuple[float, str]:
        turn = self._turn()
        due = [(at, call) for call, (_, at) in turn.calls.items()]
        return min([*due, (turn.limit_at, "limit"), (turn.retry_at, "retry")], key=lambda d: d[0])

    # Interrupts.

    def interrupt(self, number: int | None, policy: str) -> tuple[str, list[int]]:
        """The result, and the turns that ended, by number."""
        if number is None:
            ended = [queued for queued, _ in self.queue]
            for queued in ended:
                self.ended[queued] = ("aborted", "interrupt")
            self.queue.clear()
            if self.running is None:
                return "not_running", ended
            return self._interrupt_running(policy, ended)
        if self.running is not None and number == self.running.number:
            return self._interrupt_running(policy, [])
        if any(number == queued for queued, _ in self.queue):
            self.queue = [(queued, text) for queued, text in self.queue if queued != number]
            self.ended[number] = ("aborted", "interrupt")
            return "aborted", [number]
        return ("not_running" if number in self.ended else "unknown_turn"), []

    def _interrupt_running(self, policy: str, ended: list[int]) -> tuple[str, list[int]]:
        turn = self._turn()
        number = turn.number
        text = policy == "keep_text" and turn.waits == "model" and bool(turn.reply)
        if policy != "drop_turn" and (turn.complete or text):
            self.deep["keep commit"] += 1
            self._keep("cancelled", text=text)
            return "kept", [*ended, number]
        if turn.waits == "tools":
            self.deep["abort from tools"] += 1
        self._drop("aborted", "interrupt")
        return "aborted", [*ended, number]

    def _keep(self, stop_reason: str, *, text: bool) -> None:
        turn = self._turn()
        if turn.waits == "tools":
            why = "stopped" if stop_reason == "cancelled" else "limit"
            for call in turn.calls:
                turn.results[call] = ("result", call, True, f"{NO_RESULT}: {why}")
            turn.staged.append(("user", [turn.results[call] for call in turn.order]))
        if text:
            turn.staged.append(("assistant", [("text", turn.reply)]))
        self._commit(stop_reason)

    # The end of a turn.

    def _commit(self, stop_reason: str) -> None:
        turn = self._turn()
        self.committed = self.committed + turn.staged
        self.turns = self.turns + [turn.number] * len(turn.staged)
        self.head = turn.number
        self.receipts = self.receipts[turn.carried :]
        self.running, waiting = None, self.queue
        self.queue = []
        self.ended[turn.number] = ("committed", stop_reason)
        self.returned[turn.number] = turn.steers
        kept = {**self.at_commit}
        self.at_commit = {}
        kept[turn.number] = copy.deepcopy(self)
        self.at_commit, self.queue, self.running = kept, waiting, turn
        self._end("committed", stop_reason)

    def _drop(self, how: str, why: str) -> None:
        turn = self._turn()
        if turn.statuses:
            self.receipts = [*self.receipts, (turn.number, list(turn.statuses.items()))]
        self._end(how, why)

    def _end(self, how: str, why: str) -> None:
        turn = self._turn()
        self.ended[turn.number] = (how, why)
        self.returned[turn.number] = turn.steers
        self.running = None
        if self.systems:
            self.system, self.systems = self.systems[-1], []
        if self.queue:
            self._start(*self.queue.pop(0))

    def clear(self) -> bool:
        if self.running is not None:
            return False
        self.committed, self.turns, self.receipts, self.head = [], [], [], None
        self.generation += 1
        return True

    def rewind(self, to: int) -> None:
        keep = len(self.turns) - self.turns[::-1].index(to) if to else 0
        gone = list(dict.fromkeys(self.turns[keep:]))
        again = [receipt for turn in gone for receipt in self.carried[turn]]
        if again:
            self.deep["receipts again"] += 1
        self.receipts = again + self.receipts
        self._cut(slice(None, keep))
        self.generation += 1

    def _cut(self, kept: slice) -> None:
        self.committed, self.turns = self.committed[kept], self.turns[kept]
        self.head = self.turns[-1] if self.turns else None

    def forget(self, before: int) -> None:
        """*before* 0 is everything."""
        keep = self.turns.index(before) if before else len(self.turns)
        kept = set(self.turns[keep:])
        known = set(range(1, self.last + 1)) - self.forgotten
        gone = {n for n in known if n in self.turns[:keep] or not before or n < before} - kept
        if not gone:
            return
        self.generation += 1
        self._cut(slice(keep, None))
        self._forget(gone)

    def purge(self) -> None:
        self.clear()
        self._forget(set(range(1, self.last + 1)) - self.forgotten)

    def _forget(self, gone: set[int]) -> None:
        self.forgotten |= gone
        self.receipts = [receipt for receipt in self.receipts if receipt[0] not in gone]
        for turn, carried in self.carried.items():
            left = [receipt for receipt in carried if receipt[0] not in gone]
            if left != carried and turn in self.turns:
                self.deep["receipt rewritten"] += 1
                role, blocks = self.committed[self.turns.index(turn)]
                blocks = blocks[:-1] + ([self._note(left)] if left else [])
                self.committed[self.turns.index(turn)] = (role, blocks)
            self.carried[turn] = left
        self.at_commit = {n: then for n, then in self.at_commit.items() if n not in gone}

    def fork(self, at: int | None) -> Model:
        """The model of a fork at turn *at*, which takes this one's place."""
        if at is None:
            return self
        fork = copy.deepcopy(self.at_commit[at])
        earlier = list(self.at_commit)
        for turn in earlier[: earlier.index(at) + 1]:
            fork.at_commit[turn] = self.at_commit[turn]
        fork.requests, fork.now, fork.deep = self.requests, self.now, self.deep
        fork.systems = []  # a change that waited for the end of the turn came behind it
        forgotten = (self.forgotten - fork.forgotten) & set(range(1, fork.last + 1))
        silent = [n for n in fork.turns if n in forgotten]
        if silent:
            self.deep["fork of what was forgotten"] += 1
            left = fork.turns[len(fork.turns) - fork.turns[::-1].index(silent[-1]) :]
            fork.forget(left[0] if left else 0)
        fork._forget(forgotten - fork.forgotten)
        return fork

    def configure(self, system: str) -> None:
        if self.running is None:
            self.system = system
        else:
            self.systems.append(system)

    @property
    def staged(self) -> list[tuple[str, list[Block]]]:
        return self.running.staged if self.running else []

    def _turn(self) -> OpenModel:
        assert self.running is not None
        return self.running
