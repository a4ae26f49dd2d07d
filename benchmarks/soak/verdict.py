"""Is what a soak left in its store whole? Asked of the store alone, once the service has ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmsession.session.operations.integrity import Examined
from llmsession.store import open_store
from llmsession.testing import check
from llmsession.testing.recording.entries import Entry, Logged, Recording

from .stage import run_command

__all__ = ["Checked", "check_store"]

PAGE = 500
MAX_TOLD = 10


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """``open_turns`` were accepted and have no end."""

    sessions: int = 0
    records: int = 0
    open_turns: int = 0
    complaints: tuple[str, ...] = ()


async def check_store(address: str, folder: Path) -> Checked:
    """``llmsession integrity`` of the store at *address*, then each log, held against the rules of
    ``llmsession check``."""
    asked = ("integrity", "--store", address, "--json")
    code, said, errors = await run_command(*asked, folder=folder)
    found = [msgspec.json.decode(line, type=Examined) for line in said.splitlines()]
    complaints = [f"{each.session}: record {each.damaged}: {each.why}" for each in found
                  if not each.is_whole]  # fmt: skip
    if code and not complaints:
        complaints.append(f"integrity ended with {code}: {errors.strip()[-300:]}")
    unended = [each.session for each in found if each.open_turns]
    complaints += [f"{session}: a turn was accepted and has no end" for session in unended]
    complaints += await _broken_logs(address, [each.session for each in found])
    return Checked(
        sessions=len(found),
        records=sum(each.records for each in found),
        open_turns=sum(each.open_turns for each in found),
        complaints=tuple(complaints[:MAX_TOLD]),
    )


async def _broken_logs(address: str, sessions: list[str]) -> list[str]:
    store = open_store(address)
    told: list[str] = []
    try:
        for session in sessions:
            logged: list[Entry] = [
                Logged(session=session, seq=each.seq, body=msgspec.Raw(each.body))
                for each in await store.read(session)
            ]
            told += [f"{each.session}: {each.text}" for each in check(Recording(logged))
                     if each.session]  # fmt: skip
    finally:
        await store.aclose()
    return told
