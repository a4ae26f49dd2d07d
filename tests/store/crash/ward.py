"""Lives on places of their own, and what became of each."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

from .life import Told, read_told
from .nursery import Nursery, Order
from .verdict import judge

__all__ = ["Patient", "Ward", "spread"]

SIGKILL = 9


def spread(count: int, points: int) -> list[int]:
    """*count* numbers from 1 to *points*, evenly."""
    return [1 + points * (2 * at + 1) // (2 * count) for at in range(count)]


class Patient:
    """One store, on which one life follows another."""

    def __init__(self, ward: Ward, place: str, told: Path) -> None:
        self._ward = ward
        self.place = place
        self.told_to = told
        self.lives = 0

    @property
    def told(self) -> list[Told]:
        return read_told(str(self.told_to)) if self.told_to.exists() else []

    def live(self, **order: object) -> int:
        """One more life. Returns the signal that ended it, 0 if it ended by itself."""
        self.lives += 1
        told = str(self.told_to)
        order = {"place": self.place, "told": told, "number": self.lives, **order}
        ended_by = self._ward.nursery.live(Order(**order))  # type: ignore[arg-type]  # as named
        self._ward.met[f"ended by {ended_by}"] += 1
        return ended_by

    async def judge(self) -> None:
        self._ward.met.update(await judge(self.place, self.told))
        self._ward.met["verdicts"] += 1


class Ward:
    """Has a place for each patient: SQLite files in *folder*, or, with the address *postgres* of
    a server, schemas there."""

    def __init__(self, nursery: Nursery, folder: Path, postgres: str = "") -> None:
        self.nursery = nursery
        self.folder = folder
        self.met: Counter[str] = Counter()
        self._postgres = postgres
        self._patients = 0

    def admit(self, copy_of: Patient | None = None) -> Patient:
        """A new patient, on an empty place; or on a copy of the file of another one."""
        self._patients += 1
        number = self._patients
        told = self.folder / f"{number}.told"
        if self._postgres:
            assert copy_of is None
            return Patient(self, f"{self._postgres}#ward{id(self)}x{number}", told)
        patient = Patient(self, f"sqlite:{self.folder / f'{number}.db'}", told)
        if copy_of is not None:
            patient.lives = copy_of.lives
            stem = copy_of.told_to.stem
            for file in self.folder.glob(f"{stem}.*"):
                shutil.copy(file, self.folder / file.name.replace(f"{stem}.", f"{number}.", 1))
        return patient

    def dismiss(self, patient: Patient) -> None:
        for file in self.folder.glob(f"{patient.told_to.stem}.*"):
            file.unlink()

    def points_of(self, copy_of: Patient | None = None, **order: object) -> int:
        """How many write points a life has that nobody ends."""
        patient = self.admit(copy_of)
        assert patient.live(**order) == 0
        points = patient.told[-1]
        assert points.what == "points"
        self.dismiss(patient)
        return points.count

    def crashed(self, seed: int) -> Patient:
        """One whose owner was killed in the middle of its life: the next one has to recover."""
        points = self.points_of(seed=seed, rounds=3)
        patient = self.admit()
        assert patient.live(seed=seed, rounds=3, at=points // 2, how="kill") == SIGKILL
        return patient

    async def one_life(self, copy_of: Patient | None = None, **order: object) -> int:
        """A life of its own, or one that goes on from another patient's, and its verdict."""
        patient = self.admit(copy_of)
        ended_by = patient.live(**order)
        await patient.judge()
        self.dismiss(patient)
        return ended_by

    async def killed_at(self, at: int, copy_of: Patient | None = None, **order: object) -> None:
        """A life that ends at the *at*-th point, and its verdict. How often it writes depends on
        the moment: one that has ended before is lived again, and ends sooner."""
        while await self.one_life(copy_of, at=at, **order) != SIGKILL:
            at = 1 + at * 2 // 3

    async def kill_at_random(self, kills: int, *, seed: int) -> None:
        """*kills* lives that are killed at any moment. A few follow each other on each store;
        there is a verdict after the last, and after some before."""
        random = Random(seed)
        done = 0
        while done < kills:
            patient = self.admit()
            lives = min(random.randint(1, 5), kills - done)
            plan = {"rounds": 100_000, "forget": random.random() < 0.5}
            for at in range(lives):
                after_s = random.uniform(0.0, 0.3)
                ended_by = patient.live(seed=done + at, killed_after_s=after_s, **plan)
                assert ended_by == SIGKILL
                if at == lives - 1 or random.random() < 0.3:
                    await patient.judge()
            done += lives
            self.dismiss(patient)
