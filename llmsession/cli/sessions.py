"""``llmsession list``, ``show`` and ``delete``: the sessions of a store. Only delete takes one."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llmsession.errors import Refused
from llmsession.session.account import usage_of
from llmsession.session.loading import begun_rows, read_state
from llmsession.session.price_file import load_prices
from llmsession.session.state import SessionState
from llmsession.store import Search, SessionRow, Store
from llmsession.store.liveness import is_dead
from llmsession.store.protocol import Owner
from llmsession.turns.blocks import Block, OpaqueBlock, TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message, count_turns
from llmsession.turns.prices import PriceTable, dollars

from .chat_view import cost_line
from .stores import KeyFile, StoreAddress, parse_labels, parse_span, using_store

__all__ = ["delete", "list_sessions", "show"]

PAGE = 500
BRIEF = 300
"""Characters of a tool's input or result that ``show`` prints; all of them with --full."""


def list_sessions(
    *,
    store: StoreAddress,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only those with this label.")
    ] = None,
    idle: Annotated[
        str, typer.Option(metavar="SPAN", help="Only those without a record for so long: 90d.")
    ] = "0s",
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a session.")] = False,
) -> None:
    """The sessions of a store, by id: when they were written to, by whom they are held."""
    before = datetime.now(UTC).timestamp() - parse_span(idle) if parse_span(idle) else None
    search = Search(labels={**parse_labels(label)}, touched_before=before)
    rows = using_store(store, key_file, lambda opened: _rows(opened, search))
    if as_json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("session", "records", "last record", "labels", "held by", "fork of"):
        table.add_column(title, justify="right" if title == "records" else "left")
    for row in rows:
        table.add_row(*map(escape, _cells(row)))
    Console().print(table if rows else "no sessions", highlight=False)


async def _rows(store: Store, search: Search) -> list[SessionRow]:
    found: list[SessionRow] = []
    while page := await begun_rows(
        store, after=found[-1].session if found else "", limit=PAGE, search=search
    ):
        found += page
    return found


def _cells(row: SessionRow) -> tuple[str, ...]:
    labels = " ".join(f"{name}={value}" for name, value in sorted(row.labels.items()))
    holder = f"pid {row.owner.pid}" if row.owner and not _is_dead(row.owner) else ""
    return row.session, str(row.head), _moment(row.touched_at), labels, holder, row.parent or ""


def _is_dead(owner: Owner) -> bool:
    """Has its process surely ended? Then it holds nothing."""
    return bool(is_dead(owner.pid, owner.started, owner.host))


def _moment(at: float) -> str:
    """A time as people write it, in UTC; "" for none."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}" if at else ""


def show(
    session: Annotated[str, typer.Argument(metavar="ID")],
    *,
    store: StoreAddress,
    full: Annotated[bool, typer.Option("--full", help="Tool inputs and results whole.")] = False,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="Prices of models, TOML or JSON."),
    ] = None,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a message.")] = False,
) -> None:
    """One session: its conversation, what it cost, and what is open in it. Takes nothing from its
    owner."""
    table = PriceTable(load_prices(prices) if prices is not None else None)
    row, state = using_store(store, key_file, lambda opened: _read(opened, session))
    messages = state.context_messages()
    if as_json:
        for message in messages:
            print(msgspec.json.encode(message).decode())
        return
    for line in _headlines(row, state, table):
        print(line)
    for message in messages:
        print()
        _print_message(message, full=full)


async def _read(store: Store, session: str) -> tuple[SessionRow, SessionState]:
    return await store.row(session), await read_state(store, session)


def _headlines(row: SessionRow, state: SessionState, prices: PriceTable) -> Iterable[str]:
    usage = usage_of(state, prices)
    cells = _cells(row)
    yield f"session {row.session}" + (f", fork of {row.parent}" if row.parent else "")
    yield f"  {row.head} records, the last {cells[2] or 'never'} UTC, epoch {row.epoch}"
    if cells[3]:
        yield f"  labels {cells[3]}"
    if cells[4]:
        yield f"  held by {cells[4]}"
    yield (
        f"  {count_turns(state.history)} turns, {len(state.history)} messages;"
        f" {usage.total.prompt_tokens:,} tokens in, {usage.total.output_tokens:,} out"
    )
    if usage.models:
        yield f"  {cost_line(usage)}"
    for model, spent in sorted(usage.models.items()) if len(usage.models) > 1 else ():
        cost = "no price" if spent.cost_nano_usd is None else dollars(spent.cost_nano_usd)
        yield f"    {model or '(model not known)'}: {spent.requests:,} requests, {cost}"
    for turn in state.open.values():
        where = f"in step {turn.step}" if turn.started and turn.step else "not begun"
        yield f"  turn {turn.number} is open, {where}"


def _print_message(message: Message, *, full: bool) -> None:
    when = _moment(message.created_at)
    said = f"{message.turn_id} {message.role}"
    print(" · ".join(part for part in (said, message.model or "", when) if part))
    for at, block in enumerate(message.content):
        mark = " (written by the session)" if at in message.synthetic else ""
        for line in _block_text(block, full).splitlines() or [""]:
            print(f"  {line}")
        if mark:
            print(f" {mark}")


def _block_text(block: Block, full: bool) -> str:
    match block:
        case TextBlock():
            return block.text
        case ToolUseBlock():
            return f"→ {block.name} {_brief(msgspec.json.encode(block.input).decode(), full)}"
        case ToolResultBlock():
            mark = "✗" if block.is_error else "←"
            return f"{mark} {_brief(block.text, full)}"
        case OpaqueBlock():
            return f"[{block.type}]"
        case _:
            return f"[{block.__struct_config__.tag}]"


def _brief(text: str, full: bool) -> str:
    if full or len(text) <= BRIEF:
        return text
    return f"{text[:BRIEF]} ... ({len(text):,} characters; --full shows them)"


def delete(
    sessions: Annotated[list[str], typer.Argument(metavar="ID...")],
    *,
    store: StoreAddress,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also what somebody holds; it is closed there.")
    ] = False,
    key_file: KeyFile = None,
) -> None:
    """Delete sessions for good. What a fork shares with one stays the fork's; vacuum gives back
    the room."""
    if not yes:
        _confirm(f"delete {', '.join(sessions)} for good?")
    using_store(store, key_file, lambda opened: _delete(opened, sessions, force))


def _confirm(question: str) -> None:
    """Raises Refused unless somebody says yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # nobody is there
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise Refused("nothing was deleted; --yes does not ask")


async def _delete(store: Store, sessions: list[str], force: bool) -> None:
    # One that is not there, or in use, stops it before anything is gone.
    for session in sessions:
        holder = (await store.row(session)).owner
        if holder is not None and not force and not _is_dead(holder):
            told = f"session {session!r} is held by process {holder.pid}"
            raise Refused(f"{told}; --force deletes it all the same")
    for session in sessions:
        await store.delete(session)
        print(f"deleted {session}")
