"""What the machine is, and how busy others keep it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["QUIET", "Others", "commit_of", "machine_cpu", "this_machine", "wait_until_quiet"]

QUIET = 0.1
"""How many cores others may use on a machine that counts as quiet."""
LOOK_S = 5.0
LOOKS = 2
"""So many looks in a row have to find the machine quiet: a lull between two works is none."""


def this_machine() -> str:
    """The cores, the memory and the kind of processor, in a line."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        told = f", {memory:.0f} GB"
    except (OSError, ValueError):
        told = ""
    return f"{os.cpu_count()} cores{told}, {platform.machine()}, {platform.system()}"


def commit_of(tree: str | Path = ".") -> str:
    """The short name of the commit that *tree* is at, with "+" behind it if the tree differs."""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def machine_cpu() -> tuple[float, float]:
    """The CPU seconds that all programs have used since the machine started, and the time."""
    ticks = [int(word) for word in Path("/proc/stat").read_text("utf-8").split("\n")[0].split()[1:]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks[:8]) - idle) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def _own_cpu() -> float:
    """The CPU seconds of this process and of those that it started and waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Others:
    """How much of the machine's CPU went to others since this was made."""

    def __init__(self) -> None:
        self._all_s, self._now_s = machine_cpu()
        self._own_s = _own_cpu()

    @property
    def took_s(self) -> float:
        return machine_cpu()[1] - self._now_s

    @property
    def cores(self) -> float:
        """The CPU of others in cores. Processes that this one started count as others until they
        have ended."""
        all_s, now_s = machine_cpu()
        others = (all_s - self._all_s) - (_own_cpu() - self._own_s)
        return max(0.0, others / max(now_s - self._now_s, 1e-9))


def _look() -> float:
    others = Others()
    time.sleep(LOOK_S)
    return others.cores


def wait_until_quiet(patience_s: float, look: Callable[[], float] = _look) -> tuple[bool, float]:
    """Wait until others leave the machine alone, for about *patience_s* at most.

    Returns whether it is quiet, and how many cores others used at the last look.
    """
    waited, quiet = 0.0, 0
    while True:
        cores = look()
        waited += LOOK_S
        quiet = quiet + 1 if cores <= QUIET else 0
        if quiet == LOOKS or waited >= patience_s:
            return quiet == LOOKS, cores
