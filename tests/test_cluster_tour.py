"""The tour of ``make run-cluster``: sessions go on, nothing is lost, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.cluster.talks import Talk, gaps_of

ROOT = Path(__file__).resolve().parents[1]
WAIT_S = 280


def started(*arguments: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.cluster", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100", "PYTHONUNBUFFERED": "1"} | environ,
        cwd=ROOT,
        start_new_session=True,
    )


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids_in(shown: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\(pid (\d+)\)", shown)]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("postgres_server")  # skips where there is none
def test_sessions_go_on_while_hosts_die_leave_and_come_and_nothing_is_lost() -> None:
    with started("--quick") as tour:
        shown, err = tour.communicate(timeout=WAIT_S)
    assert (tour.returncode, err) == (0, "")
    assert "0 lost, 0 twice" in shown
    assert "6 of 6 subscribers saw every durable event of the log once and in order" in shown
    for step in ("nothing happens", "kill -9 b", "drain c", "add d"):
        assert re.search(rf"^ {step} .* ms \(longest", shown, re.MULTILINE), step
    assert re.search(r"^ b +gone", shown, re.MULTILINE)
    assert not any(map(is_there, pids_in(shown)))


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("postgres_server")
def test_ctrl_c_leaves_no_host_behind() -> None:
    with started("--quick") as tour:
        assert tour.stdout is not None
        shown = ""
        for line in tour.stdout:
            shown += line
            if "(pid " in line:
                break
        assert len(pids_in(shown)) == 3
        os.killpg(tour.pid, signal.SIGINT)  # as a terminal does: to the hosts, too
        _, err = tour.communicate(timeout=WAIT_S)
    assert (tour.returncode, err) == (130, "")
    assert not any(map(is_there, pids_in(shown)))


def test_without_postgresql_it_says_so_in_one_line(tmp_path: Path) -> None:
    with started(LLMSESSION_TEST_POSTGRES=str(tmp_path)) as tour:
        _, err = tour.communicate(timeout=WAIT_S)
    assert tour.returncode == 2
    assert err.startswith("cluster: there is no PostgreSQL that can be run here: ")
    assert err.count("\n") == 1


def test_a_silence_counts_whole_if_it_began_before_the_step_or_lasted_longer() -> None:
    talk = Talk("a")
    talk.arrivals = [1.0, 2.0, 2.1, 4.0]
    assert gaps_of([], 0.0, 9.0) is None
    gaps = gaps_of([talk], 1.5, 2.5)
    assert gaps is not None
    assert gaps.sessions == 1
    assert gaps.median_ms == pytest.approx(1000)  # from 1.0 to 2.0
    later = gaps_of([talk], 2.05, 9.0)
    assert later is not None
    assert later.max_ms == pytest.approx(5000)  # since 4.0
