"""Whose time it was."""

from __future__ import annotations

from pathlib import Path

import llmsession
from benchmarks.where import PARTS, main, part_of, shares

OURS = ("compaction/", "session/", "turns/", "store/", "providers/")


def test_a_file_belongs_to_the_first_part_that_its_path_names() -> None:
    assert part_of("/a/llmsession/compaction/rules/message.py") == "checking the request"
    assert part_of("/a/llmsession/session/actor/actor.py") == "actor, mailbox, commands"
    assert part_of("/a/site-packages/anyio/_core/_tasks.py") == "tasks and their scopes"
    assert part_of("/usr/lib/python3.11/asyncio/events.py") == "the event loop"
    assert part_of("/usr/lib/python3.11/enum.py") == "the rest"


def test_every_part_of_ours_has_files() -> None:
    folder = Path(llmsession.__file__).parent
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*.py")]
    marks = [mark for mark in PARTS if mark.startswith(OURS)]
    assert [mark for mark in marks if not any(mark in file for file in files)] == []
    # The first that fits counts, so a mark after a shorter one would never count.
    hidden = [m for n, m in enumerate(PARTS) if any(before in m for before in [*PARTS][:n])]
    assert hidden == []


def test_what_a_built_in_took_belongs_to_who_called_it() -> None:
    actor, anyio = ("/a/llmsession/session/actor/actor.py", 1, "f"), ("/a/anyio/x.py", 1, "g")
    stats = {
        actor: (1, 1, 1.0, 4.0, {}),
        anyio: (1, 1, 0.5, 0.5, {}),
        ("~", 0, "len"): (2, 2, 2.5, 2.5, {actor: (1, 1, 2.0, 2.0), anyio: (1, 1, 0.5, 0.5)}),
    }
    assert shares(stats) == [("actor, mailbox, commands", 0.75), ("tasks and their scopes", 0.25)]


def test_a_path_that_there_is_not_is_bad_usage() -> None:
    assert main(["nowhere"]) == 2
