"""What was sent, held against the log: each request is the projection of a state of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from llmsession.compaction.provider_side import ProviderSideConfig
from llmsession.compaction.recall import RECALL_TOOL
from llmsession.compaction.rules.check import Checker
from llmsession.compaction.view.projector import Projector
from llmsession.compaction.view.provider_blocks import summary_in
from llmsession.session.log.state import SessionState
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_json, split_blocks
from llmsession.turns.request import Frame, Profile, Request, RequestMessage, sizes_for

from ..recording.entries import Requested
from ..recording.fingerprints import digest
from ..recording.violation import Violations
from .log import Rules

__all__ = ["RequestRules", "extends"]

_BREAKS_PREFIX = (
    r.CompactionApplied, r.SessionConfigured, r.TurnAborted, r.TurnFailed, r.TurnImported,
    r.ConversationCleared, r.ConversationRewound, r.ConversationForgotten,
)  # fmt: skip
"""The records that say: from here on a request may begin differently."""


class _Compaction(msgspec.Struct):
    enabled: bool
    provider_side: ProviderSideConfig | None = None


class _Config(msgspec.Struct):
    """The parts of a logged configuration that are in every request."""

    model: str
    system: str | None
    tools: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    compaction: _Compaction
    max_tokens: int | None = None
    window_tokens: int | None = None

    def frame(self, profile: Profile) -> Frame:
        tools = [
            msgspec.Raw(
                encode_json({name: tool[name] for name in ("name", "description", "input_schema")})
            )
            for tool in self.tools
        ]
        if self.compaction.enabled and tools:
            tools.append(RECALL_TOOL)
        side = self.compaction.provider_side
        return Frame(
            model=self.model,
            max_tokens=sizes_for(self.window_tokens, self.max_tokens, profile).max_tokens,
            system=self.system,
            tools=tuple(tools),
            options=self.options if side is None else side.into(self.options, profile),
        )


class RequestRules(Rules):
    """Invariants 4 and 10. A step's requests are built after its first record and before its
    next; in between only a compaction changes what is shown. So each request must be the
    projection of one of those states, in their order."""

    def __init__(
        self, violations: Violations, requests: Sequence[Requested], profile: Profile
    ) -> None:
        super().__init__(violations)
        self._profile = profile
        self._by_step: dict[tuple[int, int], deque[Requested]] = {}
        for request in sorted(requests, key=_place):
            key = (request.turn, request.step)
            self._by_step.setdefault(key, deque()).append(request)
            self._check_told(request)
        self._waiting: deque[Requested] = deque()
        self._projector = Projector()
        self._checker = Checker(profile)
        self._config = b""
        self._frame = Frame(model="", max_tokens=0)
        self._last: tuple[Requested, Request] | None = None
        self._prefix_may_change = False

    def _check_told(self, request: Requested) -> None:
        if request.violations:
            text = f"a request of turn {request.turn} breaks {'; '.join(request.violations)}"
            self._violations.add(4, text, request)

    def before(self, state: SessionState, record: r.Record) -> None:
        reply = getattr(record, "reply", None)
        summarises = reply is not None and summary_in(reply.body, 0) is not None
        if summarises or isinstance(record, _BREAKS_PREFIX) or _gives_up(state, record):
            self._prefix_may_change = True

    def after(self, state: SessionState, record: r.Record) -> None:
        step = self._begun_step(record)
        if step is not None:
            self._end_step()
            self._waiting = self._by_step.pop(step, deque())
        elif not isinstance(record, r.CompactionApplied):
            if r.is_terminal(record) and self._is_of(r.turn_of(record)):
                self._end_step()
            return
        self._match(state)

    @staticmethod
    def _begun_step(record: r.Record) -> tuple[int, int] | None:
        match record:
            case r.TurnAccepted(turn=turn, started=True) | r.TurnStarted(turn=turn):
                return turn, 1
            case r.StepCompleted(turn=turn, step=step):
                return turn, step + 1
            case _:
                return None

    def _is_of(self, turn: int | None) -> bool:
        return bool(self._waiting) and self._waiting[0].turn == turn

    def _match(self, state: SessionState) -> None:
        """Take the waiting requests that are the projection of *state*."""
        if not self._waiting:
            return
        request = self._project(state)
        body = request.encode()
        request_digest = digest(body)
        while self._waiting and self._waiting[0].digest == request_digest:
            self._take(self._waiting.popleft(), request)

    def _project(self, state: SessionState) -> Request:
        config = bytes(state.config)
        if config != self._config:
            self._config = config
            self._frame = msgspec.json.decode(config, type=_Config).frame(self._profile)
            self._checker = Checker(self._profile)
        messages = state.context_messages()
        return self._projector.project(messages, state.view, self._profile, self._frame)

    def _take(self, sent: Requested, request: Request) -> None:
        for violation in self._checker.check(request) if not sent.violations else ():
            text = f"a request of turn {sent.turn} breaks {violation.rule}: {violation.text}"
            self._violations.add(4, text, sent)
        if self._last is not None and not self._prefix_may_change:
            before, earlier = self._last
            if not extends(earlier, request):
                text = f"the prefix changed between turn {before.turn} and turn {sent.turn}"
                self._violations.add(10, f"{text}, and no event says why", before, sent)
        self._last, self._prefix_may_change = (sent, request), False

    def _end_step(self) -> None:
        for sent in self._waiting:
            text = (
                f"the request of turn {sent.turn}, step {sent.step}, attempt {sent.attempt}"
                " is not the projection of the log"
            )
            self._violations.add(10, text, sent)
        self._waiting = deque()

    def end(self, state: SessionState) -> None:
        self._end_step()
        for requests in self._by_step.values():
            for sent in requests:
                text = f"a request of turn {sent.turn}, step {sent.step}, which the log has not"
                self._violations.add(10, text, sent)


def _gives_up(state: SessionState, record: r.Record) -> bool:
    """Does *record* take calls of the provider's tools out of the open turn, which were sent? They
    have no result when the turn ends or when the user speaks."""
    if not isinstance(record, r.StepCompleted | r.TurnCommitted):
        return False
    if isinstance(record, r.StepCompleted) and not record.steers:
        return False
    turn = state.open.get(record.turn)
    called: set[Any] = set()
    for message in turn.staged if turn is not None else ():
        for block in message.opaque:
            if block.type in ("server_tool_use", "mcp_tool_use"):
                called.add(block.decoded().get("id"))
            elif block.type.endswith("_tool_result"):
                called.discard(block.decoded().get("tool_use_id"))
    return bool(called)


def _place(sent: Requested) -> tuple[int, int, int, int]:
    # By order: the attempts of a step that is resumed are counted from 1 again.
    return sent.turn, sent.step, sent.order, sent.attempt


def extends(earlier: Request, later: Request) -> bool:
    """Does *later* begin with all of *earlier*? The last message may have grown at its end."""
    if msgspec.structs.replace(earlier, messages=()) != msgspec.structs.replace(later, messages=()):
        return False
    if not earlier.messages:
        return True
    whole = len(earlier.messages) - 1
    if len(later.messages) <= whole:
        return False
    if not all(map(_same, earlier.messages[:whole], later.messages[:whole])):
        return False
    return _grew(earlier.messages[whole], later.messages[whole])


def _same(one: RequestMessage, other: RequestMessage) -> bool:
    return one is other or (one.role == other.role and bytes(one.body) == bytes(other.body))


def _grew(earlier: RequestMessage, later: RequestMessage) -> bool:
    if _same(earlier, later):
        return True
    old, new = split_blocks(earlier.body), split_blocks(later.body)
    begins = [bytes(raw) for raw in new[: len(old)]] == [bytes(raw) for raw in old]
    return earlier.role == later.role and begins
