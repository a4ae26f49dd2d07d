"""The clients of the tour: each talks in one session without a break, and notes what it sees."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import median

import msgspec

from llmsession.session.values.config import SessionConfig
from llmsession.transport.interface import ManagerInterface, SessionInterface
from llmsession.turns import records as r
from llmsession.turns.previews import StepRestarted, TextDelta

__all__ = ["MODEL", "Gaps", "Talk", "Verdict", "gaps_of"]

MODEL = "recorded"
QUESTION = "Tell me a long story."
TAIL_CHARS = 200
"""The newest characters of a reply that are kept, to be shown."""


class Talk:
    """A client that sends one message after the other, and a subscriber beside it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tail = ""
        """The end of the text that streams now."""
        self.arrivals: list[float] = []
        """When each event arrived, in seconds by ``time.monotonic``."""
        self.records: list[r.Record] = []
        """The durable events, as the subscriber got them."""
        self.accepted: list[int] = []
        """The numbers of the turns that were sent."""
        self._session: SessionInterface
        self._is_ending = False

    async def begin(self, sessions: ManagerInterface) -> None:
        """Make the session. A turn that is open when its host dies is resumed."""
        config = SessionConfig(model=MODEL, recovery="resume")
        self._session = await sessions.create(config, session_id=self.name)

    async def talk(self) -> None:
        """Send a message, wait for the end of its turn, and so on until ``end``."""
        while not self._is_ending:
            turn = await self._session.send(QUESTION)
            self.accepted.append(turn.id.number)
            await turn.outcome()

    def end(self) -> None:
        """Send nothing after the turn that is open now."""
        self._is_ending = True

    async def follow(self) -> None:
        """Take every event of the session, for ever."""
        async for event in self._session.subscribe(after=0):
            self.arrivals.append(time.monotonic())
            if isinstance(event, TextDelta):
                self.tail = (self.tail + event.text)[-TAIL_CHARS:]
            elif isinstance(event, StepRestarted | r.TurnResumed | r.TurnAccepted):
                self.tail = ""
            if isinstance(event, r.RecordBase):
                self.records.append(event)

    async def verdict(self, sessions: ManagerInterface) -> Verdict:
        """Compare what this client saw with the log, which another client reads."""
        session = await sessions.open(self.name)
        last, log = (await session.read_status()).seq, list[r.Record]()
        events = session.subscribe(after=0)
        async for event in events:
            if isinstance(event, r.RecordBase):
                log.append(event)
                if event.seq >= last:
                    break
        events.close()
        while len(self.records) < len(log):  # noqa: ASYNC110  # the last events are on their way
            await asyncio.sleep(0.01)
        ends = [record.turn for record in log if r.is_terminal(record)]
        committed = {record.turn for record in log if isinstance(record, r.TurnCommitted)}
        return Verdict(
            sent=len(self.accepted),
            committed=len(committed & set(self.accepted)),
            resumed=sum(isinstance(record, r.TurnResumed) for record in log),
            lost=len(set(self.accepted) - committed),
            twice=len(ends) - len(set(ends)),
            same=self.records == log,
        )


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the turns of a session. ``same``: its subscriber saw the log, each durable
    event once and in order."""

    sent: int
    committed: int
    resumed: int
    lost: int
    twice: int
    same: bool


class Gaps(msgspec.Struct, frozen=True):
    """The longest silence of each of some sessions: how many there are, the median, the longest."""

    sessions: int
    median_ms: float
    max_ms: float


def gaps_of(talks: list[Talk], began: float, ended: float) -> Gaps | None:
    """The silences of *talks* that were not over at *began*, or began before *ended*."""
    longest = [_longest(talk.arrivals, began, ended) for talk in talks]
    if not longest:
        return None
    return Gaps(len(longest), median(longest) * 1000, max(longest) * 1000)


def _longest(arrivals: list[float], began: float, ended: float) -> float:
    times = [began, *(time for time in arrivals if began <= time <= ended), ended]
    before = [time for time in arrivals if time < began]
    if before:
        times[0] = before[-1]
    return max(later - earlier for earlier, later in pairwise(times))
