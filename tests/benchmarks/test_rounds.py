"""The order of the runs, and what several rounds say together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.catalogue import PEERS as CATALOGUE
from benchmarks.peers.catalogue import Peer
from benchmarks.peers.environments import Environment
from benchmarks.peers.results import read_results
from benchmarks.peers.rounds import Run, figure, planned, rotated, said
from benchmarks.peers.running import Ran
from benchmarks.peers.works import Work

PEERS = ["a", "b", "c"]
TWO = list(CATALOGUE)[:2]


def everything(rounds: int, *, done: Counter[tuple[str, str]] | None = None) -> list[Run]:
    found = done or Counter()
    plan = planned(rounds, ["w", "x"], PEERS, PEERS, lambda work, peer: found[work, peer])
    return list(plan)


def test_each_round_begins_with_another_peer_and_has_all_of_them() -> None:
    order = [run.peer for run in everything(4) if run.work == "w"]
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]


def test_a_round_has_every_work_before_the_next_round_begins() -> None:
    runs = everything(2)
    assert [run.round for run in runs] == [0] * 6 + [1] * 6
    assert [run.work for run in runs[:6]] == ["w"] * 3 + ["x"] * 3


@pytest.mark.parametrize("cut", range(12))
def test_a_measurement_that_was_broken_off_anywhere_goes_on_as_if_it_had_not_been(cut: int) -> None:
    whole = everything(2)
    done = Counter((run.work, run.peer) for run in whole[:cut])
    assert everything(2, done=done) == whole[cut:]


def test_more_rounds_than_there_were_are_added_behind_them() -> None:
    done = Counter({(work, peer): 2 for work in "wx" for peer in PEERS})
    assert everything(3, done=done) == everything(3)[12:]


def test_the_place_of_a_peer_in_a_round_does_not_depend_on_who_is_asked_for() -> None:
    some = [run.peer for run in planned(3, ["w"], PEERS, {"a", "c"}, lambda work, peer: 0)]
    assert some == ["a", "c", "c", "a", "c", "a"]
    assert rotated(PEERS, 5) == ["c", "a", "b"]


def test_the_median_over_rounds_is_of_the_medians_of_those_that_have_a_figure() -> None:
    rounds: list[dict[str, Any]] = [
        {"ms": [5.0, 1.0, 3.0]},
        {"ms": [9.0]},
        {"ms": []},
        {},
        {"ms": [4.0, 6.0]},
    ]
    assert figure(rounds, "ms") == (5.0, 3.0, 9.0)
    assert figure([{"no": None}], "no") is None
    assert figure([{"yes": True}, {"yes": False}, {"yes": True}], "yes") == (1.0, 0.0, 1.0)


def test_words_of_rounds_are_those_of_most_and_counts_add_up() -> None:
    assert said([{"why": "b"}, {"why": "a"}, {"why": "a"}, {"why": None}], "why") == "a"
    assert said([{"left": {"x": 1}}, {"left": {"y": 2, "x": 3}}], "left") == {"x": 4, "y": 2}
    assert said([{}], "why") is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--resume"], "--resume needs --out"),
        (["--rounds", "0"], "--rounds is at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


class Runs:
    """In place of the works: what was run, with its seed. It breaks off in run *breaks*."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, out: Path) -> None:
        self.made: list[tuple[str, int]] = []
        self.breaks = 0
        self.out = out
        self.versions = {"it": "1"}
        self.unsupported: str | None = None
        monkeypatch.setattr(command, "run_work", self._run)
        monkeypatch.setattr(command, "environment_of", self._environment)

    def _run(self, peer: Peer, python: str, work: Work, *, seed: int, sizes: object) -> Ran:
        if len(self.made) + 1 == self.breaks:
            raise KeyboardInterrupt
        self.made.append((peer.name, seed))
        return Ran({"kept": len(self.made)}, unsupported=self.unsupported)

    def _environment(self, peer: Peer, *, refresh: bool) -> Environment:
        return Environment("python", self.versions)

    def command(self, rounds: int, *more: str, breaks: int = 0) -> list[tuple[str, int]]:
        """The runs that the command makes."""
        self.made, self.breaks = [], breaks
        asked = ["--works", "two_sends", "--peers", ",".join(TWO), "--out", str(self.out)]
        try:
            command.main([*asked, "--rounds", str(rounds), *more])
        except KeyboardInterrupt:
            assert breaks
        return self.made

    def kept(self, peer: str) -> list[Any]:
        rounds = read_results(self.out / command.RESULTS).rounds_of("two_sends", peer)
        return [each.ran.measured["kept"] for each in rounds]


def test_a_broken_off_command_leaves_its_rounds_and_resume_adds_the_missing_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs, (ours, other) = Runs(monkeypatch, tmp_path), TWO
    first = runs.command(2, breaks=3)
    assert first == [(ours, 1), (other, 1)]
    assert runs.command(2, "--resume") == [(other, 2), (ours, 2)]
    assert (runs.kept(ours), runs.kept(other)) == ([1, 2], [2, 1])
    assert runs.command(2, "--resume") == []
    assert len(runs.command(3, "--resume")) == 2


def test_without_resume_or_with_another_release_the_rounds_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(monkeypatch, tmp_path)
    assert len(runs.command(2)) == len(runs.command(2)) == 4
    assert [len(runs.kept(name)) for name in TWO] == [2, 2]
    runs.versions = {"it": "2"}
    assert len(runs.command(2, "--resume")) == 4
    assert [len(runs.kept(name)) for name in TWO] == [2, 2]


def test_what_a_peer_does_not_offer_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(monkeypatch, tmp_path)
    runs.unsupported = "there is no such call"
    assert len(runs.command(3)) == 2
    assert runs.command(3, "--resume") == []


def test_a_slice_that_is_over_begins_no_run_and_says_how_many_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(monkeypatch, tmp_path)
    assert runs.command(2, "--slice", "0") == []
    assert "4 runs are left for --resume" in capsys.readouterr().err


def test_rounds_are_not_mixed_with_those_of_another_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(monkeypatch, tmp_path)
    runs.command(1)
    with pytest.raises(SystemExit):
        runs.command(2, "--resume", "--seed", "7")
