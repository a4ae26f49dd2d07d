"""``llmsession integrity`` reads a whole store; ``llmsession vacuum`` frees space."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import typer

from llmsession.errors import InvalidInput, StoreDamaged
from llmsession.providers import ReplayProvider
from llmsession.session.manager import SessionManager
from llmsession.session.operations.integrity import Examined, examine
from llmsession.session.values.retention import Retention, RetentionReport
from llmsession.store import Store

from ..common.exit_codes import BROKEN_PROMISE
from ..common.stores import KeyFile, StoreAddress, parse_labels, parse_limit, using_store
from ..common.terminal import complain, say, say_json

__all__ = ["integrity", "vacuum"]


def integrity(
    *,
    store: StoreAddress,
    key_file: KeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session.")
    ] = False,
) -> None:
    """Read every session of a store and report damage. Changes nothing and acquires no lease.

    Prints the first damaged record of each damaged session. Other sessions are not affected by it.
    A session that a newer llmsession wrote is printed with the kind of record that is unknown here.
    Exits with 1 if something is damaged or needs a newer llmsession.
    """
    try:
        whole = using_store(store, key_file, lambda opened: _examine(opened, as_json))
    except StoreDamaged as error:
        complain(f"llmsession: {error}")
        whole = False
    if not whole:
        raise typer.Exit(BROKEN_PROMISE)


async def _examine(store: Store, as_json: bool) -> bool:
    sessions = records = damaged = newer = 0
    complaints = await store.check()
    for complaint in complaints:
        complain(f"llmsession: the store: {complaint}")
    async with aclosing(examine(store)) as results:
        async for result in results:
            sessions += 1
            records += result.records
            newer += result.unknown_kind is not None
            damaged += not result.is_whole and result.unknown_kind is None
            if as_json:
                say_json(result, flush=True)
            elif not result.is_whole:
                say(_damage(result), flush=True)
    if not as_json:
        unread = f", {newer} need a newer llmsession" if newer else ""
        say(f"{sessions} sessions, {records} records, {damaged} sessions damaged{unread}")
    return not damaged and not newer and not complaints


def _damage(result: Examined) -> str:
    sound = f"the {result.records} before it are sound" if result.records else "it is the first"
    wrong = "is damaged" if result.unknown_kind is None else "cannot be read here"
    return f"{result.session}: record {result.damaged} {wrong}, {sound}: {result.why}"


def vacuum(
    *,
    store: StoreAddress,
    delete_idle: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="First delete sessions without a new record for SPAN."),
    ] = None,
    forget_after: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="First erase messages that are older than SPAN."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Limit both to sessions with this label."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted and erased; do nothing.")
    ] = False,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Free the space of everything that was deleted, purged or forgotten, for good.

    Afterwards none of it can be recovered from the store's file or tables. Writers wait meanwhile.
    Sessions in use are skipped, and printed.
    """
    rules = _rules(delete_idle, forget_after, parse_labels(label))
    if dry_run and not rules:
        raise InvalidInput("--dry-run needs --delete-idle or --forget-after")
    report, freed = using_store(store, key_file, lambda opened: _vacuum(opened, rules, dry_run))
    if as_json:
        say_json({"freed_bytes": freed, "retention": report})
        return
    would = "would be " if dry_run else ""
    for session in report.deleted:
        say(f"{session}: {would}deleted")
    for session, turns in report.forgotten.items():
        say(f"{session}: {turns} turns {would}forgotten")
    for session, why in report.skipped.items():
        complain(f"llmsession: skipped {session}: {why}")
    if not dry_run:
        say(f"{freed:,} bytes freed")


def _rules(
    delete_idle: str | None, forget_after: str | None, labels: dict[str, str]
) -> tuple[Retention, ...]:
    if delete_idle is None and forget_after is None:
        if labels:
            raise InvalidInput("--label needs --delete-idle or --forget-after")
        return ()
    rule = Retention(
        labels={**labels},
        delete_idle_s=None if delete_idle is None else parse_limit(delete_idle, "--delete-idle"),
        forget_after_s=None
        if forget_after is None
        else parse_limit(forget_after, "--forget-after"),
    )
    return (rule.checked(),)


async def _vacuum(
    store: Store, rules: tuple[Retention, ...], dry_run: bool
) -> tuple[RetentionReport, int]:
    # No model is called: sessions are opened only to forget messages.
    async with SessionManager(provider=ReplayProvider(()), store=store) as manager:
        report = await manager.apply_retention(rules, dry_run=dry_run)
        return report, 0 if dry_run else await store.vacuum()
