"""``llmsession import`` and ``export``: histories of other systems, into a store and out of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from llmsession.errors import InvalidInput, TranscriptError
from llmsession.providers import ReplayProvider
from llmsession.session.manager import SessionManager
from llmsession.session.operations.export import conversation_of
from llmsession.session.values.config import SessionConfig
from llmsession.store import Store
from llmsession.testing.replay.recorded_turns import recorded_tools
from llmsession.transcripts import FORMATS, Conversation, Files, left_out, read, write
from llmsession.transport.interface import ManagerInterface

from ..common.files import FormatName, check_format, print_failure, sources
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

HASH_CHARS = 12
"""Of the digest in the id of a history without one: enough that no two are alike."""
_WRITABLE = [name for name, format in FORMATS.items() if format.write is not None]


def import_files(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR...", help="Histories.", readable=False)
    ],
    *,
    store: StoreAddress,
    format: FormatName = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The sessions' model; else the last one recorded."),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tenant that owns them, at a service.")
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Take what can be read of a file, however much is missing."),
    ] = False,
    key_file: KeyFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a session.")] = False,
) -> None:
    """Take histories of other systems into a store, as sessions that go on from there.

    The format is recognised. A file of a tree becomes a session for its active path and a fork
    for each other branch. What had to be put right is reported, and what was left out is said on
    stderr. A broken file is refused whole, with its line, and so is one of which more than 1 % is
    left out, unless --partial. Imported once: a session whose id is taken is refused.
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
            raise InvalidInput(f"{where}: {missing}; --partial imports the rest")
        if missing.count:
            print_failure(where, str(missing))
        conversations += _with_ids(whole, files)
    if not any(conversation.messages for conversation in conversations):
        raise InvalidInput(f"{path}: no conversation in it")
    return [conversation for conversation in conversations if conversation.messages]


def _with_ids(read: Iterable[Conversation], files: Files) -> list[Conversation]:
    """*read*, where a file holds no id of its own with one made of its bytes: the same file is
    still imported once, and does not stand in the way of another one."""
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

    # No model is asked: the sessions are only created.
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
        say(f"  notes: {counts}" + (f"; {lost} of them lost something said" if lost else ""))


def export_sessions(
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="Ids, or their beginnings; without any, all."),
    ] = None,
    *,
    store: StoreOrNone = None,
    connect: ConnectTo = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
    to: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of: {', '.join(_WRITABLE)}.")
    ] = "own",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR|-", help="Where; - is the output.")
    ] = Path("-"),
    key_file: KeyFile = None,
) -> None:
    """Write sessions as files of our own format or another system's. Takes nothing.

    A file that is there already is not overwritten.
    """
    if to not in _WRITABLE:
        raise InvalidInput(
            f"{to!r} cannot be written; formats that can be written: {', '.join(_WRITABLE)}"
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
            message = f"{len(files)} files do not go into one output; name a folder with --output"
            raise InvalidInput(message)
        write_file(next(iter(files.values())))
        return
    for name in files:
        if (output / name).exists():
            raise InvalidInput(f"{output / name} is there already")
    for name, raw in files.items():
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(raw)
        say(str(path))


async def _conversations(store: Store, sessions: list[str] | None) -> list[Conversation]:
    if sessions:
        return [await conversation_of(store, await id_in_store(store, typed)) for typed in sessions]
    conversations: list[Conversation] = []
    while rows := await store.rows(after=conversations[-1].id if conversations else "", limit=500):
        conversations += [await conversation_of(store, row.session) for row in rows]
    if not conversations:
        raise InvalidInput("there is no session in the store")
    return conversations


async def _conversations_there(
    there: ManagerInterface, sessions: list[str] | None
) -> list[Conversation]:
    names = [await id_at_service(there, typed) for typed in sessions or ()]
    if not sessions:
        while page := await there.list(after=names[-1] if names else "", limit=500, archived=None):
            names += [row.session for row in page]
    if not names:
        raise InvalidInput("there is no session at the service")
    return [await there.export_conversation(name) for name in names]
