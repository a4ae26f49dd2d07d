"""Exports a session as a conversation of ``transcripts``: the reverse of an import."""

from __future__ import annotations

import msgspec

from llmsession.compaction.view.summary_wording import without_title
from llmsession.store.protocol import Store
from llmsession.transcripts import Conversation
from llmsession.turns import records as r
from llmsession.turns.messages import Message, count_turns

from ..log.history_cuts import first_kept, messages_before
from ..log.read_state import read_state
from ..log.state import TABLES_BY_TEXT, TABLES_BY_TURN, SessionState
from ..tasks.worker_thread import off_loop
from ..values.labels import ARCHIVED_LABEL, MAX_AGE_LABEL, TITLE_LABEL

__all__ = ["conversation_of"]

_CUT_SHORT = frozenset(
    {"cancelled", "error", "max_steps", "max_seconds", "max_turn_tokens", "budget"}
)
"""Stop reasons of the session: the turn was committed before the model had finished."""
OWN = "own"
_OWN_LABELS = frozenset({TITLE_LABEL, ARCHIVED_LABEL, MAX_AGE_LABEL})
"""Labels that an import sets from the conversation and from its configuration."""


SHORT_MESSAGES = 1_000
"""So many messages are looked through in less than a millisecond: too little for a thread."""


class _Config(msgspec.Struct):
    system: str | None = None


class _ForkAndCuts:
    """Facts that the fold does not keep: the history at the fork, and which turns were cut
    short.
    """

    def __init__(self) -> None:
        self.base: tuple[Message, ...] = ()
        self.cut_short: set[int] = set()

    def __call__(self, state: SessionState, record: r.Record) -> None:
        if isinstance(record, r.SessionForked):
            self.base = state.history
            before = first_kept(self.base)
            if before is not None:  # the parent has forgotten the beginning
                self.base = self.base[messages_before(self.base, before) :]
        elif isinstance(record, r.TurnCommitted) and record.stop_reason in _CUT_SHORT:
            self.cut_short.add(record.turn)


async def conversation_of(store: Store, session_id: str) -> Conversation:
    """The history of a session as a conversation in our own format, without open turns.

    Everything that an import had beside the messages is in it again: a session that is exported,
    imported and exported again gives an equal conversation. For a fork, ``parent`` and
    ``shared_turns`` say what it has in common with its parent. ``system`` is the session's or else
    the imported one. ``summary`` is the newest prefix summary that the session shows.

    Acquires no lease. Raises SessionNotFound, and StoreError if the log cannot be read.
    """
    extra = _ForkAndCuts()
    states = [await read_state(store, session_id, extra)]
    if states[0].message_count <= SHORT_MESSAGES:
        return _conversation(session_id, states, extra)
    return await off_loop(_conversation, session_id, states, extra)


def _conversation(session_id: str, states: list[SessionState], extra: _ForkAndCuts) -> Conversation:
    """The conversation of the only one of *states*, which is taken out of it: to free the tables of
    a long state takes long, too.
    """
    state = states.pop()
    source = state.source or r.Source(format=OWN)
    cut_short = extra.cut_short | set(source.interrupted)
    summary = next((s for s in reversed(state.view.prefix_summaries) if s.by != "provider"), None)
    in_order = dict.fromkeys(message.turn for message in state.history)
    forked = state.parent is not None
    conversation = Conversation(
        id=session_id,
        # Other fields of its file can be written back only in that format.
        format=source.format,
        messages=state.history,
        interrupted=tuple(turn for turn in in_order if turn in cut_short),
        title=state.labels.get(TITLE_LABEL, "") or source.title,
        labels={name: state.labels[name] for name in state.labels if name not in _OWN_LABELS},
        archived=ARCHIVED_LABEL in state.labels,
        source=source.origin,
        parent=state.parent or source.parent,
        shared_turns=_shared_turns(extra.base, state.history) if forked else source.shared_turns,
        summary=without_title(summary.text) if summary is not None else "",
        summary_upto=summary.upto if summary is not None else 0,
        system=msgspec.json.decode(state.config, type=_Config).system or source.system,
        extra=source.extra,
        records=source.records,
    )
    for name in (*TABLES_BY_TURN, *TABLES_BY_TEXT):  # in between, the event loop gets its turn
        delattr(state, name)
    return conversation


def _shared_turns(base: tuple[Message, ...], history: tuple[Message, ...]) -> int:
    same = 0
    for mine, theirs in zip(history, base, strict=False):
        if mine is not theirs:
            break
        same += 1
    return count_turns(history[:same])
