"""Our own adapter, run as every peer is; and that no peer is left out of a work without a word."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main
from benchmarks.peers.adapters.common import AsyncTools, BlockingTools, cancel_moments
from benchmarks.peers.catalogue import ADAPTERS, OURS, PEERS, Peer
from benchmarks.peers.running import run_work
from benchmarks.peers.works import WORKS, Work

QUICK = {"persistence"}
"""In it an adapter is killed and recovers, too. The others start the same processes in the same
way."""
WANTED = {
    "kept": 2,
    "interleaved": False,
    "history_valid": True,
    "refused_next": 0,
    "orphans": 0,
    "hangs": 0,
    "false_outcome": False,
    "valid_after": True,
    "lost_after_kill": 0,
    "half_after_kill": 0,
    "recovers": 1,
    "failed": 0,
}


def offered(adapter: Path) -> dict[str, ast.expr]:
    """What an adapter gives to ``main``, by work."""
    for node in ast.walk(ast.parse(adapter.read_text("utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="main"), args=[ast.Dict(keys=keys, values=values)]):
                return {
                    key.value: value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                }
    return {}


@pytest.mark.parametrize("peer", PEERS.values(), ids=list(PEERS))
def test_an_adapter_does_every_work_or_says_why_it_does_not(peer: Peer) -> None:
    works = offered(peer.script)
    assert set(works) == set(WORKS)
    for work in works.values():
        reason = isinstance(work, ast.Constant) and isinstance(work.value, str) and work.value
        assert isinstance(work, ast.Call) or (reason and len(reason) > 10)


@pytest.mark.parametrize("script", sorted(ADAPTERS.glob("*.py")), ids=lambda path: path.stem)
def test_an_adapter_imports_nothing_of_ours(script: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(script.read_text("utf-8")))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert script.stem == "ours" or not imported & {"llmsession", "benchmarks"}
    if script.stem == "common":
        assert imported <= sys.stdlib_module_names


def test_every_adapter_is_in_the_catalogue() -> None:
    scripts = {path.name for path in ADAPTERS.glob("*.py")} - {"common.py", "__init__.py"}
    assert {peer.adapter for peer in PEERS.values()} == scripts


def test_the_measure_that_is_plotted_is_one_of_the_works() -> None:
    for work in WORKS.values():
        assert work.plotted in [measure.name for measure in work.measures]
        assert set(work.quick) == set(work.sizes)


def test_both_kinds_of_tools_have_the_same_names_and_words() -> None:
    for name in ("quick", "slow", "read", "stubborn"):
        assert getattr(AsyncTools, name).__name__ == getattr(BlockingTools, name).__name__ == name
        assert getattr(BlockingTools, name).__doc__


def test_equal_seeds_cancel_at_equal_moments() -> None:
    assert cancel_moments(7, 5, 0.1, 0.2) == cancel_moments(7, 5, 0.1, 0.2)
    assert cancel_moments(7, 5, 0.1, 0.2) != cancel_moments(8, 5, 0.1, 0.2)


@pytest.mark.real_time
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(work, id=name, marks=[] if name in QUICK else [pytest.mark.long])
        for name, work in WORKS.items()
    ],
)
def test_our_adapter_does_the_work_over_real_http(work: Work) -> None:
    ran = run_work(PEERS[OURS], sys.executable, work, seed=1, sizes=work.quick)
    assert (ran.failed, ran.unsupported) == (None, None)
    assert {measure.name for measure in work.measures} <= set(ran.measured)
    kept = {name: ran.measured[name] for name in WANTED if name in ran.measured}
    assert kept == {name: WANTED[name] for name in kept}


def test_an_unknown_peer_is_told_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--peers", "nobody"])
    assert ended.value.code == 2
    assert "no peer 'nobody'; there are llmsession" in capsys.readouterr().err
