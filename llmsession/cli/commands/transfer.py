"""``llmsession import`` and ``export``: copy histories of other systems into and out of a store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from llmsession.errors import InvalidInput, SessionNotFound, TranscriptError
from llmsession.providers import ReplayProvider
from llmsession.session.log.read_state import begun_rows
from llmsession.session.manager import SessionManager
from llmsession.session.operations.export import conversation_of
from llmsession.session.values.config import SessionConfig
from llmsession.store import Store
from llmsession.testing.replay.recorded_turns import recorded_tools
from llmsession.transcripts import FORMATS, Conversation, Files, left_out, read, write
from llmsession.transport.interface import ManagerInterface

from ..common.files import FormatName, check_format, print_failure, sources, write_new
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
from ..common.stores import KeyFile, StoreAddress, using_store
from ..common.terminal import say, say_json, write_file

__all__ = ["export_sessions", "import_files"]

PAGE = 500
HASH_CHARS = 12
"""Characters of a file's digest in the id of a history that has none: enough to be unique."""
_WRITABLE = [name for name, format in FORMATS.items() if format.write is not None]


def import_files(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|DIR...", help="Recorded conversations.", readable=False),
    ],
    *,
    store: StoreAddress,
    format: FormatName = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model of the sessions. Default: the last recorded one."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tenant that owns the sessions.")
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Import what can be read, however much is left out."),
    ] = False,
    key_file: KeyFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session.")
    ] = False,
) -> None:
    """Import conversations of other systems as sessions that can be continued.

    The format is detected. A file that contains a tree of messages becomes a session for its active
    path and a fork for each other branch. Repairs are printed, and stderr says what was left out.

    A broken file is rejected with the number of the broken line. A file of which more than 1 %
    would be left out is rejected, too, unless --partial is used. A session that exists already is
    not imported again.
    """
    conversations = [one for path in paths for one in _read(path, format, partial)]
    sessions = using_store(
        store, key_file, lambda opened: _import(opened, conversations, model, tenant), new=True
    )
    for session, conversation in zip(sessions, conversations, strict=True):
        _tell(session, conversation, as_json)


def _read(path: Path, format: str | None, partial: bool) -> list[Conversation]:
    check_format(format)
    conversations: list[Conversation] = []
    for where, files in sources(path, format):
        try:
            whole = read(files, format, strict=not partial)
        except TranscriptError as error:
            raise InvalidInput(f"{where}: {error}") from error
        missing = left_out(whole)
        if missing.is_too_much and not partial:
            raise InvalidInput(f"{where}: {missing}; use --partial to import the rest")
        if missing.count:
            print_failure(where, str(missing))
        conversations += _with_ids(whole, files)
    if not any(conversation.messages for conversation in conversations):
        raise InvalidInput(f"{path}: the file contains no conversation")
    return [conversation for conversation in conversations if conversation.messages]


def _with_ids(read: Iterable[Conversation], files: Files) -> list[Conversation]:
    """The conversations of *read*, all with ids. One without an id gets an id made from its file's
    bytes: so a second import of that file is refused, and another file does not collide with it."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(hashlib.sha256(files[name]).digest())
    hash_prefix = digest.hexdigest()[:HASH_CHARS]
    return [
        msgspec.structs.replace(one, id=f"{one.id}-{hash_prefix}")
        if one.format in (one.id, "cassette")
        else one
        for one in read
    ]


async def _import(
    store: Store, conversations: Sequence[Conversation], model: str | None, tenant: str | None
) -> tuple[str, ...]:
    def config_for(conversation: Conversation) -> SessionConfig:
        said = [message.model for message in conversation.messages if message.model]
        return SessionConfig(
            model=model or (said[-1] if said else "unknown"),
            system=conversation.system or None,
            tools=recorded_tools(conversation),
        )

    # No model is called: the sessions are only created.
    async with SessionManager(provider=ReplayProvider(()), store=store) as manager:
        return await manager.import_conversations(conversations, config_for, tenant=tenant)


def _tell(session: str, conversation: Conversation, as_json: bool) -> None:
    notes = conversation.count_notes()
    lost = sum(note.visible for note in conversation.notes)
    figures: dict[str, Any] = {
        "session": session,
        "format": conversation.format,
        "turns": len(conversation.turns),
        "messages": len(conversation.messages),
        "fork_of": conversation.parent,
        "notes": notes,
        "lost": lost,
    }
    if as_json:
        say_json(figures)
        return
    fork = f", a branch of {conversation.parent}" if conversation.parent else ""
    say(
        f"{session}: {figures['turns']} turns, {figures['messages']} messages"
        f" ({conversation.format}{fork})"
    )
    if notes:
        counts = ", ".join(f"{what} {count}" for what, count in notes.items())
        say(f"  notes: {counts}" + (f"; {lost} of them lost content" if lost else ""))


def export_sessions(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids, or beginnings of ids. Default: all sessions."),
    ] = None,
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    to: Annotated[
        str, typer.Option(metavar="NAME", help=f"Output format: {', '.join(_WRITABLE)}.")
    ] = "own",
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR|-", help="Folder for the files; - is stdout."),
    ] = Path("-"),
    key_file: KeyFile = None,
) -> None:
    """Write sessions as files, in this project's own format or in another system's.

    Acquires no lease. An existing file is not overwritten.
    """
    if to not in _WRITABLE:
        raise InvalidInput(
            f"--to: {to!r} cannot be written; formats that can be: {', '.join(_WRITABLE)}"
        )
    local = {"--key-file": key_file}
    service = service_at(connect, token_file, ca, store=store, local=local)
    if service is not None:
        conversations = using_service(service, lambda there: _conversations_there(there, sessions))
    else:
        address = a_store(store)
        conversations = using_store(
            address, key_file, lambda opened: _conversations(opened, sessions)
        )
    files = write(conversations, to)
    if str(output) == "-":
        if len(files) > 1:
            message = f"{len(files)} files cannot go to stdout; name a folder with --output"
            raise InvalidInput(message)
        write_file(next(iter(files.values())))
        return
    for name in files:
        if (output / name).exists():
            raise InvalidInput(f"--output: {output / name} exists already")
    for name, raw in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_new(path, raw)
        say(str(path))


async def _conversations(store: Store, sessions: list[str] | None) -> list[Conversation]:
    if sessions:
        return [await conversation_of(store, await id_in_store(store, typed)) for typed in sessions]
    conversations, after = list[Conversation](), ""
    while rows := await begun_rows(store, after=after, limit=PAGE):
        for row in rows:
            with suppress(SessionNotFound):  # deleted after the row was read
                conversations.append(await conversation_of(store, row.session))
        after = rows[-1].session
    if not conversations:
        raise InvalidInput("the store has no sessions")
    return conversations


async def _conversations_there(
    there: ManagerInterface, sessions: list[str] | None
) -> list[Conversation]:
    if sessions:
        names = [await id_at_service(there, typed) for typed in sessions]
        return [await there.export_conversation(name) for name in names]
    conversations, after = list[Conversation](), ""
    while rows := await there.list(after=after, limit=PAGE, archived=None):
        for row in rows:
            with suppress(SessionNotFound):  # deleted after the row was read
                conversations.append(await there.export_conversation(row.session))
        after = rows[-1].session
    if not conversations:
        raise InvalidInput("the service has no sessions")
    return conversations
