"""Does the process that held a session still exist? The operating system is asked.

A pid alone is not enough. Pids are used again, after a while or after a restart, and in another
container the same pid is another process. So a process is identified by three things: its pid, the
place where that pid is valid (the boot of the machine and the pid namespace), and the time when the
process started, in ticks since that boot. A change of the clock does not move these ticks. On
Linux, /proc has all three. On other systems nothing is known here, and a store relies on the
owner's lease.
"""

from __future__ import annotations

import os
import time

__all__ = ["lease_clock", "our_start", "owner_is_dead", "start_of", "this_host"]

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_START_FIELD = 22  # proc_pid_stat(5): starttime, in clock ticks since boot
_STATE_FIELD = 3


def this_host() -> str:
    """The place in which this process's pid is valid; "" if the system does not say.

    It is equal for two processes that see each other's pids under the same numbers.
    """
    return _us.host


def lease_clock() -> float:
    """Seconds by a clock that nobody sets and that goes on while the computer sleeps, where the
    system has one."""
    boot_clock = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


def our_start() -> str:
    """When this process started; "" if the system does not say."""
    return _us.started


class _Us:
    """This process, looked up at import, when no event loop waits, and again in the child after a
    fork.
    """

    def __init__(self) -> None:
        self.look()

    def look(self) -> None:
        self.host = _host()
        self.started = start_of(os.getpid()) or ""


def _host() -> str:
    try:
        boot = _read(_BOOT_ID).decode().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def start_of(pid: int) -> str | None:
    """When process *pid* started.

    None if it does not exist, is dead and not waited for yet, or if the system does not say.
    """
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name of the program is in parentheses and may contain anything, also ")".
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[_STATE_FIELD - 3] in (b"Z", b"X"):
        return None
    return fields[_START_FIELD - 3].decode()


def owner_is_dead(pid: int, started: str, host: str) -> bool | None:
    """Has the process ended? None if that cannot be known from here."""
    if not started or not host or host != this_host():
        return None
    return start_of(pid) != started


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


_us = _Us()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_us.look)
