"""``llmsession list``, ``search``, ``show``, ``label`` and ``delete``, on a store or at a service.

In a store only ``label`` and ``delete`` acquire the session's lease. At a service ``show`` opens
the session there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from llmsession.errors import InvalidInput, Refused
from llmsession.providers import ReplayProvider
from llmsession.session import LLMSession, SearchPage, SessionManager
from llmsession.session.core.account import UsageByModel, usage_of
from llmsession.session.log.read_state import begun_rows, read_state
from llmsession.session.log.state import SessionState
from llmsession.session.log.titles import title_of
from llmsession.session.operations.listing import with_archived, with_titles
from llmsession.session.operations.search import search_sessions
from llmsession.session.unfinished import has_open_turn
from llmsession.session.values.history_limits import Forgotten
from llmsession.session.values.labels import TITLE_LABEL
from llmsession.session.values.outcome import SessionUsage
from llmsession.session.values.validation import checked_filter, checked_labelling
from llmsession.store import SessionFilter, SessionRow, Store
from llmsession.store.liveness import owner_is_dead
from llmsession.store.protocol import Owner
from llmsession.transport.interface import ManagerInterface
from llmsession.turns.blocks import Block, OpaqueBlock, TextBlock, ToolResultBlock, ToolUseBlock
from llmsession.turns.messages import Message
from llmsession.turns.spending.prices import PriceTable, dollars

from ..common.confirm import confirm
from ..common.exit_codes import BROKEN_PROMISE
from ..common.files import price_table
from ..common.formatting import cost_line
from ..common.ids import id_at_service, id_in_store
from ..common.service import (
    CaFile,
    ConnectTo,
    StoreOrNone,
    TokenFile,
    a_store,
    service_at,
    using_service,
)
from ..common.stores import KeyFile, parse_labels, parse_span, using_store
from ..common.terminal import TerminalConsole, complain, neutral_line, say, say_json

__all__ = ["delete", "label", "list_sessions", "search", "show"]

PAGE = 500
LATEST_S = 253_402_300_799
"""The last second that a date can be written of, in seconds since the epoch."""
MIN_LABELS_WIDTH = 12
MAX_WIDTH = 10_000
"""Columns of a table that is printed without a terminal: more than any id has characters."""
BRIEF = 300
"""Characters of a tool's input or result that ``show`` prints. With --full it prints all."""


def list_sessions(
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only sessions with this label; repeatable."),
    ] = None,
    idle: Annotated[
        str, typer.Option(metavar="SPAN", help="Only sessions without a new record for SPAN: 90d.")
    ] = "0s",
    archived: Annotated[
        bool, typer.Option("--archived", help="Include archived sessions.")
    ] = False,
    key_file: KeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session.")
    ] = False,
) -> None:
    """List the sessions of a store or a service, ordered by id.

    Prints the title, the labels, the time of the last record, and the process that holds the lease.
    Each 500 sessions are a table of their own.
    """
    local = {"--key-file": key_file}
    service = service_at(connect, token_file, ca, store=store, local=local)
    idle_s = parse_span(idle, "--idle")
    before = datetime.now(UTC).timestamp() - idle_s if idle_s else None
    filter = checked_filter(SessionFilter(labels={**parse_labels(label)}, touched_before=before))
    which = None if archived else False
    show = _print_lines if as_json else _print_table
    if service is not None:
        count = using_service(
            service,
            lambda there: _each_page(
                partial(there.list, filter=filter, archived=which, titles=True), show
            ),
        )
    else:
        filter = with_archived(filter, which)
        count = using_store(
            a_store(store),
            key_file,
            lambda opened: _each_page(partial(_titled, opened, filter), show),
        )
    if not count and not as_json:
        TerminalConsole().print("no sessions")


def _print_lines(rows: Sequence[SessionRow]) -> None:
    for row in rows:
        say_json(row)


def _print_table(rows: Sequence[SessionRow]) -> None:
    console = TerminalConsole()
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("session", "records", "last record", "title", "labels", "held by", "fork of"):
        # Users copy ids and times, so these columns are never folded. The other columns are. On a
        # terminal that is still too narrow, lines become longer than the terminal is wide.
        table.add_column(
            title,
            justify="right" if title == "records" else "left",
            no_wrap=title not in ("title", "labels", "held by"),
            overflow="fold",
            min_width=MIN_LABELS_WIDTH if title in ("title", "labels") else len(title),
        )
    for row in rows:
        table.add_row(*map(escape, _cells(row)))
    room = console.options.update(max_width=MAX_WIDTH)
    table.width = max(console.width, Measurement.get(console, room, table).minimum)
    console.print(table, crop=False, soft_wrap=table.width > console.width)


async def _titled(store: Store, filter: SessionFilter, **page: Any) -> Sequence[SessionRow]:
    return await with_titles(store, await begun_rows(store, filter=filter, **page))


async def _each_page(
    read: Callable[..., Awaitable[Sequence[SessionRow]]],
    show: Callable[[Sequence[SessionRow]], None],
) -> int:
    """Show all rows, page by page, so that a store of any size can be listed. Returns how many
    there are. *read* returns the page that follows an id.
    """
    count, after = 0, ""
    while page := await read(after=after, limit=PAGE):
        show(page)
        count, after = count + len(page), page[-1].session
    return count


def _cells(row: SessionRow) -> tuple[str, ...]:
    named = (item for item in sorted(row.labels.items()) if item[0] != TITLE_LABEL)
    labels = " ".join(f"{name}={value}" for name, value in named)
    holder = ""
    if row.owner and not _is_dead(row.owner):  # a service does not tell a tenant the process
        holder = f"pid {row.owner.pid}" if row.owner.pid else row.owner.name
    moment, parent = _moment(row.touched_at), row.parent or ""
    cells = row.session, str(row.head), moment, row.title, labels, holder, parent
    return tuple(map(neutral_line, cells))


def _is_dead(owner: Owner) -> bool:
    """Whether the owner's process has certainly ended. A dead owner holds no lease."""
    return bool(owner_is_dead(owner.pid, owner.started, owner.host))


def _moment(timestamp: float) -> str:
    """*timestamp* as a UTC date and time; "" for 0, and for a number that is none."""
    if not 0 < timestamp <= LATEST_S:
        return ""
    return f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d %H:%M:%S}"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What ``show`` prints of one session."""

    headlines: tuple[str, ...]
    usage: SessionUsage
    messages: tuple[Message, ...]
    history: int
    """How many of ``messages`` are in the history. The others belong to the open turn."""
    turns: int
    open: tuple[str, ...]
    forgotten: Forgotten


def show(
    session: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a session, or the beginning of it.")
    ],
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print tool inputs and results in full.")
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="Prices of models, as TOML or JSON."),
    ] = None,
    key_file: KeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per message.")
    ] = False,
) -> None:
    """Show one session: its conversation, its usage and cost, and its open turn.

    Acquires no lease: a process that uses the session is not disturbed.
    """
    local = {"--key-file": key_file, "--prices": prices}
    service = service_at(connect, token_file, ca, store=store, local=local)
    table = price_table(prices)
    if service is not None:
        report = using_service(service, lambda sessions: _read_there(sessions, session))
    else:
        address = a_store(store)
        row, state = using_store(address, key_file, lambda opened: _read(opened, session))
        report = _shown(row, state, table)
    if as_json:
        for message in report.messages:
            say_json(message)
        return
    for line in _headlines(report):
        say(line)
    for message in report.messages:
        say()
        _print_message(message, full=full)


async def _read(store: Store, typed: str) -> tuple[SessionRow, SessionState]:
    session = await id_in_store(store, typed)
    return await store.row(session), await read_state(store, session)


def _described(row: SessionRow, title: str) -> tuple[str, ...]:
    """What the store knows of a session, and its *title*."""
    session, _, moment, _, labels, holder, parent = _cells(row)
    lines = [
        f"session {session}" + (f", fork of {parent}" if parent else ""),
        f"  {row.head} records, the last {moment or 'never'} UTC, epoch {row.epoch}",
    ]
    lines += [f"  title {neutral_line(title)}"] if title else []
    lines += [f"  labels {labels}"] if labels else []
    lines += [f"  held by {holder}"] if holder else []
    return tuple(lines)


def _shown(row: SessionRow, state: SessionState, prices: PriceTable) -> Shown:
    return Shown(
        headlines=_described(row, title_of(state)),
        usage=usage_of(state, UsageByModel(state, prices)),
        messages=tuple(state.context_messages()),
        history=len(state.history),
        turns=state.turn_count,
        open=tuple(
            _open_line(turn.number, turn.step if turn.started else 0)
            for turn in state.open.values()
        ),
        forgotten=state.forgotten,
    )


async def _read_there(sessions: ManagerInterface, session: str) -> Shown:
    opened = await sessions.open(await id_at_service(sessions, session))
    status, row = await opened.read_status(), await sessions.row(opened.id, titles=True)
    return Shown(
        headlines=_described(row, row.title),
        usage=await opened.read_usage(),
        messages=await opened.read_conversation(include_open=True),
        history=status.messages,
        turns=status.turns,
        open=()
        if status.turn is None
        else (
            _open_line(status.turn.number, status.step),
            *((f"  {status.queued} sends are queued",) if status.queued else ()),
        ),
        forgotten=status.forgotten,
    )


def _open_line(turn: int, step: int) -> str:
    return f"  turn {turn} is open, {f'in step {step}' if step else 'not begun'}"


def _forgotten_line(forgotten: Forgotten) -> str:
    """What was erased for good, and why. The reasons look like ``age 3, messages 2``."""
    asked = forgotten.turns - sum(forgotten.limits.values())
    reasons = [f"{name} {turns}" for name, turns in forgotten.limits.items()]
    reasons += [f"asked for {asked}"] if asked else []
    said = f"{forgotten.turns} turns, {forgotten.messages} messages, the last time"
    return f"  forgotten: {said} {_moment(forgotten.at)} UTC ({', '.join(reasons)})"


def _headlines(report: Shown) -> Iterable[str]:
    yield from report.headlines
    usage = report.usage
    yield (
        f"  {report.turns} turns, {report.history} messages;"
        f" {usage.total.prompt_tokens:,} tokens in, {usage.total.output_tokens:,} out"
    )
    if report.forgotten.turns:
        yield _forgotten_line(report.forgotten)
    if usage.models:
        yield f"  {cost_line(usage)}"
    for model, spent in sorted(usage.models.items()) if len(usage.models) > 1 else ():
        cost = "no price" if spent.cost_nano_usd is None else dollars(spent.cost_nano_usd)
        yield f"    {model or '(model not known)'}: {spent.requests:,} requests, {cost}"
    yield from report.open


def _print_message(message: Message, *, full: bool) -> None:
    when = _moment(message.created_at)
    said = f"{message.turn_id} {message.role}"
    say(" · ".join(part for part in (said, message.model or "", when) if part))
    for index, block in enumerate(message.content):
        mark = " (written by the session)" if index in message.synthetic else ""
        for line in _block_text(block, full).splitlines() or [""]:
            say(f"  {line}")
        if mark:
            say(f" {mark}")


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
    sessions: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids of sessions, or the beginnings of ids."),
    ],
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete sessions in use; they are closed there.")
    ] = False,
    key_file: KeyFile = None,
) -> None:
    """Delete sessions for good.

    Forks keep the records that they share with a deleted session. Run `vacuum` afterwards to free
    the space. In a store, --force is needed for a session that a process holds; at a service, for
    one with an open turn.
    """
    local = {"--key-file": key_file}
    service = service_at(connect, token_file, ca, store=store, local=local)
    address = a_store(store) if service is None else ""
    if service is not None:
        ids = using_service(service, lambda there: _ids(partial(id_at_service, there), sessions))
    else:
        ids = using_store(
            address, key_file, lambda opened: _ids(partial(id_in_store, opened), sessions)
        )
    if not yes:
        question = f"delete {', '.join(map(neutral_line, ids))} for good?"
        confirm(question, "nothing was deleted; use --yes to skip this question")
    if service is not None:
        using_service(service, lambda there: _delete_there(there, ids, force))
    else:
        using_store(address, key_file, lambda opened: _delete(opened, ids, force))


async def _ids(find: Callable[[str], Awaitable[str]], typed: list[str]) -> list[str]:
    """The ids that *typed* stand for, without duplicates."""
    return list(dict.fromkeys([await find(each) for each in typed]))


async def _delete(store: Store, sessions: list[str], force: bool) -> None:
    # Look at all of them first: nothing is deleted if one is missing or in use.
    epochs: dict[str, int] = {}
    for session in sessions:
        row = await store.row(session)
        epochs[session], holder = row.epoch, row.owner
        if holder is not None and not force and not _is_dead(holder):
            reason = f"session {session!r} is held by process {holder.pid}"
            raise Refused(f"{reason}; use --force to delete it anyway")
    for session, epoch in epochs.items():
        await store.delete(session, epoch=None if force else epoch)  # it may have been taken since
        say(f"deleted {session}")


async def _delete_there(there: ManagerInterface, sessions: list[str], force: bool) -> None:
    for session in sessions:
        status = await (await there.open(session)).read_status()
        if status.turn is not None and not force:
            reason = f"turn {status.turn.number} of session {session!r} is open"
            raise Refused(f"{reason}; use --force to delete it anyway")
    for session in sessions:
        await there.delete(session)
        say(f"deleted {session}")


def label(
    session: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a session, or the beginning of it.")
    ],
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='Set the title shown in lists; "" removes it.'),
    ] = None,
    archive: Annotated[
        bool | None,
        typer.Option("--archive/--unarchive", help="Hide it from lists, or list it again."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Replace all labels; repeatable."),
    ] = None,
    key_file: KeyFile = None,
) -> None:
    """Set the title or the labels of a session, archive it, or take it out of the archive.

    In a store the session must not be in use.
    """
    local = {"--key-file": key_file}
    service = service_at(connect, token_file, ca, store=store, local=local)
    labels = {**parse_labels(label)} if label else None
    labels, title, archived = checked_labelling(labels, title, archive)
    change = partial(_label, typed=session, labels=labels, title=title, archived=archived)
    if service is not None:
        changed = using_service(service, lambda there: change(there, find=id_at_service))
    else:
        changed = using_store(a_store(store), key_file, lambda opened: _label_cold(opened, change))
    say(f"labelled {neutral_line(changed)}")


async def _label(
    sessions: Any, *, find: Callable[..., Awaitable[str]], typed: str, **changes: Any
) -> str:
    session = await sessions.open(await find(sessions, typed))
    await session.label(**changes)
    return str(session.id)


async def _label_cold(store: Store, change: Callable[..., Awaitable[str]]) -> str:
    # No model is called: the session is opened only to be labelled.
    async with SessionManager(provider=ReplayProvider(()), store=store) as manager:

        async def find(_: object, typed: str) -> str:
            session = await id_in_store(store, typed)
            if await has_open_turn(store, await store.row(session)):
                raise Refused(
                    f"session {session!r} has an open turn; label it at the process that runs it"
                )
            return session

        return await change(_Openable(manager), find=find)


class _Openable(NamedTuple):
    """Opens sessions without functions for their tools: none of them runs here."""

    manager: SessionManager

    async def open(self, session: str) -> LLMSession:
        return await self.manager.open(session, unbound="caller")


def search(
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="Words that must all be in one message. Quote words that follow each other;"
            " begin* matches every word with that beginning.",
        ),
    ],
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Only sessions with this label; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Print at most N sessions.")] = 20,
    after: Annotated[str, typer.Option(metavar="ID", help="Continue after this id.")] = "",
    key_file: KeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session.")
    ] = False,
) -> None:
    """Find sessions whose conversation contains the words of QUERY, ordered by id.

    Prints the place of the first match and the words around it. An encrypted store has no index:
    there every session is read, so use --label to narrow the search. Exits with 1 if a session
    could not be read.
    """
    if limit < 1:
        raise InvalidInput(f"--limit is {limit}; it must be at least 1")
    local = {"--key-file": key_file}
    service = service_at(connect, token_file, ca, store=store, local=local)
    filter = SessionFilter(labels={**parse_labels(label)})
    if service is not None:
        page = using_service(
            service,
            lambda there: _all_hits(partial(there.search, query, filter=filter), after, limit),
        )
    else:
        page = using_store(
            a_store(store),
            key_file,
            lambda opened: _all_hits(
                partial(search_sessions, opened, query, filter=filter), after, limit
            ),
        )
    _print_hits(page, as_json=as_json)
    if page.skipped:
        raise typer.Exit(BROKEN_PROMISE)


def _print_hits(page: SearchPage, *, as_json: bool) -> None:
    for hit in page.hits:
        if as_json:
            say_json(hit)
            continue
        side = "u" if hit.role == "user" else "a"
        place = f"{side}{hit.turn}" if hit.messages else "title"
        more = f", {hit.messages} messages" if hit.messages > 1 else ""
        say(f"{hit.session}  {place}  {_moment(hit.at)}{more}")
        say(f"    {hit.excerpt}")
    if not page.hits and not as_json:
        say("no matches")
    for why in page.skipped.values():
        complain(f"llmsession: not searched: {why}")
    if page.next is not None:
        complain(f"llmsession: there may be more; continue with --after {page.next}")


async def _all_hits(
    read: Callable[..., Awaitable[SearchPage]], after: str, limit: int
) -> SearchPage:
    """The hits of all pages, at most *limit* sessions. *read* returns the page after an id."""
    found = SearchPage(next=after)
    while found.next is not None and len(found.hits) < limit:
        page = await read(after=found.next, limit=min(PAGE, limit - len(found.hits)))
        found = SearchPage(
            hits=found.hits + page.hits, next=page.next, skipped={**found.skipped, **page.skipped}
        )
    return found
