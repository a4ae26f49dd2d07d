"""A pytest plugin that writes down what was tested, and how each test went."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import llmsession

__all__ = ["TESTIMONY", "Testimony"]

TESTIMONY = "LLMSESSION_TESTIMONY"
"""The variable that names the file to write to."""


class Testimony(msgspec.Struct):
    """What one pytest saw. ``package`` is where the tested code was imported from; ``failed`` has
    the first words of what each failing test raised."""

    package: str
    passed: set[str] = msgspec.field(default_factory=set)
    skipped: set[str] = msgspec.field(default_factory=set)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    uncollected: list[str] = msgspec.field(default_factory=list)

    def ran(self, node: str) -> bool:
        """Did *node*, a test with all its parameters, pass, each time?"""
        bad = (*self.skipped, *self.failed)
        return any(_is(node, each) for each in self.passed) and not any(
            _is(node, each) for each in bad
        )

    def told_of(self, node: str) -> list[str]:
        """Why *node* did not pass, as far as it ran."""
        failed = [how for run, how in self.failed.items() if _is(node, run)]
        return failed + ["it was skipped" for run in self.skipped if _is(node, run)]


def _is(node: str, run: str) -> bool:
    return run == node or run.startswith(f"{node}[")


_seen = Testimony(str(Path(llmsession.__file__).parent))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _seen.uncollected.append(f"{report.nodeid}: {_words(report)}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _seen.failed.setdefault(report.nodeid, _words(report))
    elif report.skipped:
        _seen.skipped.add(report.nodeid)
    elif report.when == "call":
        _seen.passed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    Path(os.environ[TESTIMONY]).write_bytes(msgspec.json.encode(_seen))


def _words(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    told = crash.message if crash is not None else str(report.longrepr)
    # It may quote text that is no valid Unicode, which JSON cannot hold.
    return str(told).strip()[:300].encode("utf-8", "replace").decode()
