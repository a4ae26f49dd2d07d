"""``llmsession integrity`` and ``llmsession vacuum``: is a store whole, and giving room back."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import Annotated

import msgspec
import typer

from llmsession.session.integrity import Examined, examine
from llmsession.store import Store

from .exit_codes import BROKEN_PROMISE
from .stores import KeyFile, StoreAddress, using_store

__all__ = ["integrity", "vacuum"]


def integrity(
    *,
    store: StoreAddress,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a session.")] = False,
) -> None:
    """Read every session of a store, and report what cannot be read. Changes and takes nothing.

    Of each damaged session the first bad record is named; the others are not touched by it.
    Exit code 1: something is damaged.
    """
    whole = using_store(store, key_file, lambda opened: _examine(opened, as_json))
    if not whole:
        raise typer.Exit(BROKEN_PROMISE)


async def _examine(store: Store, as_json: bool) -> bool:
    sessions = records = damaged = 0
    complaints = await store.check()
    for complaint in complaints:
        print(f"llmsession: the store: {complaint}", file=sys.stderr)
    async with aclosing(examine(store)) as found:
        async for each in found:
            sessions += 1
            records += each.records
            damaged += not each.is_whole
            if as_json:
                print(msgspec.json.encode(each).decode(), flush=True)
            elif not each.is_whole:
                print(_told(each), flush=True)
    if not as_json:
        print(f"{sessions} sessions, {records} records, {damaged} sessions damaged")
    return not damaged and not complaints


def _told(found: Examined) -> str:
    sound = f"the {found.records} before it are sound" if found.records else "it is the first"
    return f"{found.session}: record {found.damaged} is damaged, {sound}: {found.why}"


def vacuum(
    *,
    store: StoreAddress,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Give back the room of what was deleted, purged and forgotten, for good.

    After it nothing of that can be found in the store's file or tables. Writers wait for it.
    """
    freed = using_store(store, key_file, lambda opened: opened.vacuum())
    if as_json:
        print(msgspec.json.encode({"freed_bytes": freed}).decode())
    else:
        print(f"{freed:,} bytes given back")
