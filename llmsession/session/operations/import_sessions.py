"""Imports recorded conversations as sessions: one, or a tree with its branches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import anyio
import anyio.to_thread

from llmsession.errors import InvalidInput, SessionError
from llmsession.transcripts import Conversation
from llmsession.turns import records as r
from llmsession.turns.messages import Message

from ..actor.actor import Actor
from ..core.core import profile_of
from ..log.fork_records import Branch
from ..log.history_cuts import messages_through
from ..registry.runtime import Runtime
from ..values.commands import ForkPoint
from ..values.config import SessionConfig
from ..values.labels import (
    checked_tenant,
    labelled,
    namespace_of,
    new_session_id,
    with_max_age,
    with_tenant,
)
from ..values.validation import checked_labels, checked_session_id
from .import_records import (
    Imported,
    check_sendable,
    import_turns,
    source_of,
    usable_labels,
    with_file_summary,
)

__all__ = ["ConfigFor", "import_many", "import_one"]

ConfigFor: TypeAlias = SessionConfig | Callable[[Conversation], SessionConfig]
"""The configuration of imported sessions: one for all, or a function of the conversation."""

OWN = "own"
"""Our own format. Its files give each conversation the id of its session."""
DIGEST_CHARS = 12
"""The length of the digest in the id of a conversation that has no id of its own."""
INLINE_BYTES = 64 * 1024
"""Preparing a conversation up to this size takes less time than switching to a thread."""


class _ImportedSession(NamedTuple):
    """A conversation that was imported.

    ``numbers`` are the session's turn numbers by those in the conversation. ``ends`` are the seqs
    of the turns' last records by the session's turn numbers.
    """

    conversation: Conversation
    session: str
    history: tuple[Message, ...]
    numbers: Mapping[int, int]
    ends: Mapping[int, int]


class _BranchPoint(NamedTuple):
    """Where a branch leaves its parent's session: after the record ``upto``.

    ``messages`` are the shared messages, which belong to the turns ``used``.
    """

    parent: _ImportedSession
    upto: int
    messages: tuple[Message, ...]
    used: frozenset[int]


async def import_one(
    runtime: Runtime,
    conversation: Conversation,
    config: SessionConfig,
    *,
    session_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    tenant: str | None = None,
) -> Actor:
    """Import *conversation* as a new session.

    Raises the errors of ``SessionManager.import_conversation``.
    """
    _check_kind(conversation)
    tenant = None if tenant is None else checked_tenant(tenant)
    if session_id is None:
        session_id = _own_id(conversation, tenant)
    session = checked_session_id(session_id)
    actor, _ = await _import(runtime, conversation, config, session, labels=labels, tenant=tenant)
    return actor


async def import_many(
    runtime: Runtime,
    conversations: Sequence[Conversation],
    config_for: ConfigFor,
    *,
    tenant: str | None = None,
) -> tuple[str, ...]:
    """Import each of *conversations* as a new session, all or none. Returns their ids in the same
    order.

    Raises the errors of ``SessionManager.import_conversations``.
    """
    if not isinstance(conversations, list | tuple):
        kind = type(conversations).__name__
        raise InvalidInput(f"conversations must be a list of conversations, not {kind}")
    for conversation in conversations:
        _check_kind(conversation)
    tenant = None if tenant is None else checked_tenant(tenant)
    sessions: dict[int, _ImportedSession] = {}
    try:
        for index in _parents_first(conversations):
            conversation = conversations[index]
            config = config_for(conversation) if callable(config_for) else config_for
            branch = _branch_point(conversation, sessions.values())
            session = _own_id(conversation, tenant)
            actor, imported = await _import(
                runtime, conversation, config, session, tenant=tenant, branch=branch
            )
            numbers = {**(branch.parent.numbers if branch else {}), **imported.numbers}
            ends = dict(actor.state.committed_at)
            sessions[index] = _ImportedSession(
                conversation, session, actor.state.history, numbers, ends
            )
            await runtime.evict(actor)
    except BaseException:
        with anyio.CancelScope(shield=True):
            for imported_session in reversed(sessions.values()):
                with suppress(SessionError):  # the caller gets the error of the import
                    await runtime.delete(imported_session.session)
        raise
    return tuple(sessions[index].session for index in range(len(conversations)))


def _check_kind(conversation: object) -> None:
    if not isinstance(conversation, Conversation):
        raise InvalidInput(f"an import needs a Conversation, not {type(conversation).__name__}")


def _own_id(conversation: Conversation, tenant: str | None) -> str:
    """The conversation's own id, if a session of *tenant* can have it.

    So a second import of the same conversation is refused. If its file has no id, the reader has
    used the name of the format; then a digest of its messages is added.
    """
    name = conversation.id
    if name == conversation.format != OWN:
        name = f"{name}-{_digest(conversation)}"
    try:
        return checked_session_id((namespace_of(tenant) if tenant is not None else "") + name)
    except InvalidInput:
        return new_session_id(tenant)


def _digest(conversation: Conversation) -> str:
    digest = hashlib.sha256()
    for message in conversation.messages:
        digest.update(message.role.encode() + hashlib.sha256(bytes(message.body)).digest())
    return digest.hexdigest()[:DIGEST_CHARS]


def _parents_first(conversations: Sequence[Conversation]) -> list[int]:
    """The indexes of *conversations*, each after that of its parent."""
    indices = {conversation.id: index for index, conversation in enumerate(conversations)}
    order: dict[int, None] = {}
    for start in range(len(conversations)):
        path, index = list[int](), start
        while index not in order and index not in path:  # in path: parents may form a cycle
            path.append(index)
            index = indices.get(conversations[index].parent, index)
        order.update(dict.fromkeys(reversed(path)))
    return list(order)


def _branch_point(
    conversation: Conversation, sessions: Iterable[_ImportedSession]
) -> _BranchPoint | None:
    """Where *conversation* leaves one of *sessions*.

    None if its parent is not among them, or if both do not begin with the same turns.
    """
    count = conversation.shared_turns
    parent = next(
        (session for session in sessions if session.conversation.id == conversation.parent), None
    )
    if parent is None or not 0 < count <= len(conversation.turns):
        return None
    if conversation.turns[:count] != parent.conversation.turns[:count]:
        return None
    number = parent.numbers.get(conversation.turns[count - 1][0].turn)
    if number is None:  # the import left out that turn because it was empty
        return None
    messages = parent.history[: messages_through(parent.history, number)]
    upto = parent.ends[number]
    used = frozenset(turn for turn, end in parent.ends.items() if end <= upto)
    return _BranchPoint(parent, upto, messages, used)


async def _import(
    runtime: Runtime,
    conversation: Conversation,
    config: SessionConfig,
    session: str,
    *,
    labels: Mapping[str, str] | None = None,
    tenant: str | None,
    branch: _BranchPoint | None = None,
) -> tuple[Actor, Imported]:
    config, stored = runtime.check_config(config, tenant)
    profile = profile_of(runtime.provider, config)
    before = branch.messages if branch else ()

    def prepare() -> Imported:
        imported = import_turns(
            conversation,
            session,
            compaction=config.compaction,
            before=before,
            shared_turns=conversation.shared_turns if branch else 0,
            used=branch.used if branch else (),
        )
        numbers = {**(branch.parent.numbers if branch else {}), **imported.numbers}
        imported = with_file_summary(
            imported,
            conversation,
            profile,
            before=before,
            numbers=numbers,
            budget_tokens=config.sizes(profile).budget_tokens,
        )
        messages = (*before, *imported.messages)
        view = imported.view_of(len(messages))
        check_sendable(conversation, messages, view, profile, config.frame(profile))
        return imported

    if sum(len(message.body) for message in conversation.messages) <= INLINE_BYTES:
        imported = prepare()
    else:
        imported = await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    session_labels, left_out = (
        usable_labels(conversation) if labels is None else (checked_labels(labels), ())
    )
    session_labels = labelled(session_labels, None, None, conversation.archived or None)
    session_labels = with_max_age(with_tenant(session_labels, tenant), config.max_age_s)
    source = source_of(conversation, imported, left_out)
    if branch is None:
        created = r.SessionCreated(
            session=session, config=stored, labels=session_labels, source=source
        )
        return await runtime.create(config, session, [created, *imported.records]), imported

    actor = await runtime.fork(
        branch.parent.session,
        ForkPoint(session, branch.upto),
        session_labels,
        branch.messages,
        config=config,
        imported=Branch(stored, source, imported.records),
    )
    return actor, imported
