"""The course of a soak: rounds of load with faults in them, each with a rest after it.

In the first half of the time the service is killed in every second round; its second half is one
life, so that a slow growth has time to show. All else goes on to the end: the service is stopped
for a moment, its model goes away or spoils answers, clients are killed, and sessions are deleted
by retention and the store is vacuumed beside it all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from .errand import Errand, Told
from .flatness import Rules, Sample
from .looking import look
from .report import Report, SoakPlan
from .stage import ClientProcess, ModelProcess, run_command, service_program
from .verdict import check_store

__all__ = ["run_soak"]

LOOK_EVERY_S = 2.0
SETTLE_S = 60.0
"""How long turns may take to end once nobody asks for more."""
IDLE_S = 3.0
STOPPED_S = (0.2, 1.0, 2.5, 6.5)
"""The longest is past the lag at which turns are refused."""


async def run_soak(plan: SoakPlan, folder: Path) -> Report:
    """Run *plan*; what it needs is in *folder*, which is empty before. Logs, the store, and the
    records of what broke are left there."""
    return await _Soak(plan, folder).perform()


class _Soak:
    def __init__(self, plan: SoakPlan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._random = Random(plan.seed)
        self._store = plan.store or f"sqlite:{folder}/soak.db"
        self._model = ModelProcess(plan.seed)
        self._service = service_program(folder, self._store, self._model.url, idle_s=IDLE_S)
        self._life = 1
        self._rest = 0
        self._is_resting = False
        self._is_down = False
        self._samples: list[Sample] = []
        self._faults: Counter[str] = Counter()
        self._told: list[tuple[float, Told]] = []
        self._complaints: list[str] = []
        self._began = time.monotonic()

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def perform(self) -> Report:
        await self._model.start()
        try:
            await self._service.start()
            self._began = time.monotonic()
            async with self._looked_at():
                await self._rounds()
            await self._end()
        finally:
            await self._service.end()
            await self._model.stop()
        self._read_log()
        checked = await check_store(self._store, self._folder)
        broken = [each for asked in self._model.asked for each in asked.broken]
        self._complaints += [f"the model refused: {each}" for each in broken]
        return Report(
            plan=self._plan,
            seconds=round(self._now(), 1),
            lives=self._life,
            rests=self._rest,
            samples=tuple(self._samples),
            faults=dict(self._faults),
            told=tuple(self._told),
            asked=tuple(self._model.asked),
            checked=checked,
            complaints=(*self._complaints, *checked.complaints),
            rules=Rules(),
        )

    # Looking.

    @asynccontextmanager
    async def _looked_at(self) -> AsyncIterator[None]:
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            await self._sample()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _sample(self) -> Sample | None:
        if self._is_down:
            return None
        life, rest = self._life, self._rest if self._is_resting else 0
        health = self._service.address("http")
        found = await look(self._service.pid, health, at_s=self._now(), life=life, rest=rest)
        # One that was begun under load, or before a kill, says nothing about a rest or a life.
        if found and (life, rest) == (self._life, self._rest if self._is_resting else 0):
            self._samples.append(found)
            return found
        return None

    # Rounds.

    async def _rounds(self) -> None:
        plan, number = self._plan, 0
        while self._now() < plan.minutes * 60:
            number += 1
            await self._round(number)
            await self._pause()

    async def _round(self, number: int) -> None:
        plan, random = self._plan, self._random
        grpc, unix = self._service.address("grpc"), self._service.address("unix")
        clients = [
            ClientProcess(
                Errand(
                    name=f"r{number}c{at}",
                    seed=plan.seed * 100_000 + number * 100 + at,
                    seconds=plan.round_s,
                    addresses=(unix, grpc) if at % 2 == 0 else (grpc, unix),
                    folder=str(self._folder),
                    lives=plan.lives,
                    stresses=at == 0 or at < plan.clients - 1,
                )
            )
            for at in range(plan.clients)
        ]
        faults = [name for name in plan.faults if random.random() < 0.5]
        if number % 2 == 1 and self._now() < plan.minutes * 60 / 2:
            faults.append("kill")
        random.shuffle(faults)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(client.run()) for client in clients]
            group.create_task(self._break(faults, clients))
        for client, task in zip(clients, running, strict=True):
            match task.result():
                case Told() as told:
                    self._told.append((round(self._now(), 1), told))
                    self._complaints += told.complaints
                case str(why):
                    self._complaints.append(why)
                case None:
                    self._faults["clients killed"] += client.was_killed

    async def _break(self, faults: list[str], clients: list[ClientProcess]) -> None:
        room_s = self._plan.round_s / (len(faults) + 1)
        for fault in faults:
            await asyncio.sleep(self._random.uniform(0.5, 1.2) * room_s)
            await self._perform(fault, clients)

    async def _perform(self, fault: str, clients: list[ClientProcess]) -> None:
        random = self._random
        match fault:
            case "kill":
                self._is_down = True
                await self._service.kill()
                await self._service.start()
                self._life += 1
                self._is_down = False
                self._faults["services killed"] += 1
            case "stop":
                self._service.tell(signal.SIGSTOP)
                try:
                    await asyncio.sleep(random.choice(STOPPED_S))
                finally:
                    self._service.tell(signal.SIGCONT)
                self._faults["services stopped for a moment"] += 1
            case "model away":
                await self._model.stop()
                await asyncio.sleep(random.uniform(0.0, 1.0))
                await self._model.start()
                self._faults["models away"] += 1
            case "client":
                clients[-1].kill()
            case _:
                await self._vacuum()

    async def _vacuum(self) -> None:
        asked = ["vacuum", "--store", self._store, "--delete-idle", "60s", "--label", "soak=life"]
        code, said, errors = await run_command(*asked, folder=self._folder)
        self._faults["vacuums with retention"] += 1
        self._faults["sessions deleted by retention"] += said.count(": deleted")
        if code:
            self._complaints.append(f"vacuum ended with {code}: {errors.strip()[-300:]}")

    async def _pause(self) -> None:
        """Nobody is there: until all is as at the first rest of this life, or for ``rest_s``."""
        settled = await self._settled()
        if not settled:
            self._complaints.append("turns went on for a minute after the last client had gone")
        self._rest += 1
        self._is_resting = True
        await asyncio.sleep(self._plan.rest_s)
        self._is_resting = False

    async def _settled(self) -> bool:
        until = self._now() + SETTLE_S
        while self._now() < until:
            found = await self._sample()
            if found is not None and not found.open_turns:
                return True
            await asyncio.sleep(0.5)
        return False

    # The end.

    async def _end(self) -> None:
        try:
            os.kill(self._service.pid, 0)
        except ProcessLookupError:
            self._complaints.append("the service ended by itself")
        code = await self._service.terminate()
        if code:
            self._complaints.append(f"the service ended with {code} after SIGTERM")

    def _read_log(self) -> None:
        """What it logged as an error of its own."""
        counted: Counter[str] = Counter()
        for line in self._service.log.read_bytes().splitlines():
            try:
                entry = msgspec.json.decode(line, type=dict[str, object])
            except msgspec.DecodeError:
                counted[f"not a log line: {line[:200]!r}"] += 1
                continue
            if entry.get("level") in ("error", "critical"):
                counted[f"{entry.get('event')} ({str(entry.get('exception', ''))[-200:]})"] += 1
        self._complaints += [f"logged {n} times: {what}" for what, n in counted.most_common(10)]
