"""How recorded conversations become sessions of a manager: one, or a tree with its branches."""

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
from ..values.labels import checked_tenant, namespace_of, new_session_id, with_tenant
from ..values.validation import checked_labels, checked_session_id
from .import_records import Imported, check_sendable, import_turns, source_of, usable_labels

__all__ = ["ConfigFor", "import_many", "import_one"]

ConfigFor: TypeAlias = SessionConfig | Callable[[Conversation], SessionConfig]
"""The configuration of what is imported: one for all, or chosen for each conversation."""

OWN = "own"
"""Our own format: its files give each conversation its session's id."""
MADE_ID_CHARS = 12
"""Of the digest in the id of a history without one: enough that no two are alike."""
INLINE_BYTES = 64 * 1024
"""Up to here a conversation takes less to prepare than the hop to a thread."""


class _Taken(NamedTuple):
    """A conversation that is a session now. ``numbers`` are its turns' numbers there, by those
    in the conversation; ``ends`` the seqs of their records, by number."""

    conversation: Conversation
    session: str
    history: tuple[Message, ...]
    numbers: Mapping[int, int]
    ends: Mapping[int, int]


class _Shared(NamedTuple):
    """Where a branch leaves its parent's session: behind the record ``upto``, which ends what
    they have in common: ``messages``, of the turns ``used``."""

    parent: _Taken
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
    """*conversation* as a new session. Raises as ``SessionManager.import_conversation``."""
    _check_kind(conversation)
    tenant = None if tenant is None else checked_tenant(tenant)
    if session_id is None:
        session_id = _own_id(conversation, tenant)
    session = checked_session_id(session_id)
    actor, _ = await _taken(runtime, conversation, config, session, labels=labels, tenant=tenant)
    return actor


async def import_many(
    runtime: Runtime,
    conversations: Sequence[Conversation],
    config_for: ConfigFor,
    *,
    tenant: str | None = None,
) -> tuple[str, ...]:
    """Each of *conversations* as a new session, all or none; their ids, in the same order.

    Raises as ``SessionManager.import_conversations``.
    """
    for conversation in conversations:
        _check_kind(conversation)
    tenant = None if tenant is None else checked_tenant(tenant)
    taken: dict[int, _Taken] = {}
    try:
        for at in _parents_first(conversations):
            conversation = conversations[at]
            config = config_for(conversation) if callable(config_for) else config_for
            shared = _shared(conversation, taken.values())
            session = _own_id(conversation, tenant)
            actor, imported = await _taken(
                runtime, conversation, config, session, tenant=tenant, shared=shared
            )
            numbers = {**(shared.parent.numbers if shared else {}), **imported.numbers}
            ends = dict(actor.state.committed_at)
            taken[at] = _Taken(conversation, session, actor.state.history, numbers, ends)
            await runtime.evict(actor)
    except BaseException:
        with anyio.CancelScope(shield=True):
            for each in reversed(taken.values()):
                with suppress(SessionError):  # the first error is told
                    await runtime.delete(each.session)
        raise
    return tuple(taken[at].session for at in range(len(conversations)))


def _check_kind(conversation: object) -> None:
    if not isinstance(conversation, Conversation):
        told = f"an import needs a Conversation, not {type(conversation).__name__}"
        raise InvalidInput(told)


def _own_id(conversation: Conversation, tenant: str | None) -> str:
    """The conversation's own id, if a session of *tenant* can have it: so nothing is imported
    twice. One that its file gave none, and its reader the format's name, is told by what was
    said."""
    name = conversation.id
    if name == conversation.format != OWN:
        name = f"{name}-{_digest(conversation)}"
    try:
        return checked_session_id((namespace_of(tenant) if tenant is not None else "") + name)
    except InvalidInput:
        return new_session_id(tenant)


def _digest(conversation: Conversation) -> str:
    said = hashlib.sha256()
    for message in conversation.messages:
        said.update(message.role.encode() + hashlib.sha256(bytes(message.body)).digest())
    return said.hexdigest()[:MADE_ID_CHARS]


def _parents_first(conversations: Sequence[Conversation]) -> list[int]:
    """The places of *conversations*, each behind that of its parent."""
    places = {conversation.id: at for at, conversation in enumerate(conversations)}
    order: dict[int, None] = {}
    for start in range(len(conversations)):
        way, at = list[int](), start
        while at not in order and at not in way:
            way.append(at)
            at = places.get(conversations[at].parent, at)
        order.update(dict.fromkeys(reversed(way)))
    return list(order)


def _shared(conversation: Conversation, taken: Iterable[_Taken]) -> _Shared | None:
    """Where *conversation* leaves one of those that are *taken*; None if it stands alone, or if
    its beginning is not what its parent's session has."""
    count = conversation.shared_turns
    parent = next((each for each in taken if each.conversation.id == conversation.parent), None)
    if parent is None or not 0 < count <= len(conversation.turns):
        return None
    if conversation.turns[:count] != parent.conversation.turns[:count]:
        return None
    number = parent.numbers.get(conversation.turns[count - 1][0].turn)
    if number is None:  # nothing was left of it
        return None
    messages = parent.history[: messages_through(parent.history, number)]
    upto = parent.ends[number]
    used = frozenset(turn for turn, end in parent.ends.items() if end <= upto)
    return _Shared(parent, upto, messages, used)


async def _taken(
    runtime: Runtime,
    conversation: Conversation,
    config: SessionConfig,
    session: str,
    *,
    labels: Mapping[str, str] | None = None,
    tenant: str | None,
    shared: _Shared | None = None,
) -> tuple[Actor, Imported]:
    config, stored = runtime.check_config(config, tenant)
    profile = profile_of(runtime.provider, config)
    before = shared.messages if shared else ()

    def prepare() -> Imported:
        imported = import_turns(
            conversation,
            session,
            compaction=config.compaction,
            before=before,
            shared_turns=conversation.shared_turns if shared else 0,
            used=shared.used if shared else (),
        )
        messages = (*before, *imported.messages)
        check_sendable(conversation, messages, profile, config.frame(profile))
        return imported

    if sum(len(message.body) for message in conversation.messages) <= INLINE_BYTES:
        imported = prepare()
    else:
        imported = await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    own, left_out = usable_labels(conversation) if labels is None else (checked_labels(labels), ())
    own = with_tenant(own, tenant)
    source = source_of(conversation, imported, *left_out)
    if shared is None:
        created = r.SessionCreated(session=session, config=stored, labels=own, source=source)
        return await runtime.create(config, session, [created, *imported.records]), imported

    actor = await runtime.fork(
        shared.parent.session,
        ForkPoint(session, shared.upto),
        own,
        shared.messages,
        config=config,
        imported=Branch(stored, source, imported.records),
    )
    return actor, imported
