"""Who asked was answered, once, and what was answered stands in the log."""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.turns import records as r
from llmsession.turns.blocks import TextBlock, parse_blocks

from ..recording.entries import Invoked, Refused, Returned, SessionRecording
from ..recording.fingerprints import digest
from ..recording.violation import Violations

__all__ = ["accepted_sends", "check_callers", "token_of"]


_FAILED = "the actor of session"
"""How the error begins that callers get from an actor that a bug of ours has ended."""


def token_of(record: r.TurnAccepted | r.SteerAccepted) -> str:
    """The token at the start of a send's text: up to the first colon."""
    texts = (block.text for block in parse_blocks(record.body) if isinstance(block, TextBlock))
    return next(texts, "").partition(":")[0]


_UNSURE = ("StoreError", "SessionMoved", "SessionClosed")
"""Errors of a caller whose command may have been performed all the same."""


def _is_unsure(refusals: Sequence[Refused]) -> bool:
    return any(refusal.error in _UNSURE for refusal in refusals)


def accepted_sends(
    session: SessionRecording, records: Sequence[r.Record]
) -> dict[int, tuple[r.TurnAccepted, Invoked]]:
    """Each accepted turn, and the call that it came from: of repeated calls the first that was
    not refused. Turns of which nobody can know are left out: of a repeated send whose caller
    did not wait, or was told that nobody knows, any of the calls may be the one that was
    accepted."""
    unsure = {number for number in session.refused if _is_unsure(session.refused[number])}
    unsure.update(session.abandoned)
    by_token: dict[str, list[Invoked]] = {}
    for call in sorted(session.invoked.values(), key=lambda call: call.order):
        if call.command == "send" and (call.call not in session.refused or call.call in unsure):
            by_token.setdefault(call.token, []).append(call)
    first = {
        token: calls[0]
        for token, calls in by_token.items()
        if len(calls) == 1 or not any(call.call in unsure for call in calls)
    }
    return {
        record.turn: (record, first[token])
        for record in records
        if isinstance(record, r.TurnAccepted) and (token := token_of(record)) in first
    }


def check_callers(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
) -> None:
    """Invariant 13: every caller has one answer; a send is accepted once, in ingress order."""
    _check_answered(session, violations)
    _check_sends(session, records, violations)
    _check_order(session, records, violations)
    _check_results(session, records, violations)


def _check_answered(session: SessionRecording, violations: Violations) -> None:
    for answered in (session.returned, session.refused, session.abandoned):
        for number in sorted(answered.keys() - session.invoked.keys()):
            text = f"command number {number} was answered, and nobody gave it"
            violations.add(13, text, answered[number][0])
    for number, call in session.invoked.items():
        answers = [
            *session.returned.get(number, ()),
            *session.refused.get(number, ()),
            *session.abandoned.get(number, ()),
        ]
        failed = [
            refused
            for refused in session.refused.get(number, ())
            if refused.text.startswith(_FAILED)
        ]
        if failed:
            violations.add(13, failed[0].text, call, *failed)
        if not answers:
            violations.add(13, f"{call.command} number {number} was never answered", call)
        elif len(answers) > 1:
            violations.add(13, f"{call.command} number {number} was answered twice", call, *answers)


def _check_sends(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
) -> None:
    accepted: dict[str, r.TurnAccepted | r.SteerAccepted] = {}
    for record in records:
        if not isinstance(record, r.TurnAccepted | r.SteerAccepted):
            continue
        token = token_of(record)
        if not token:  # a fork of what was forgotten: nobody knows what was said
            continue
        earlier = accepted.setdefault(token, record)
        if earlier is not record:
            violations.add(
                13, f"the send {token!r} was accepted twice", seqs=[earlier.seq, record.seq]
            )
    for number, call in session.invoked.items():
        if call.command != "send":
            continue
        accepted_record = accepted.get(call.token)
        for answer in session.returned.get(number, ()):
            if accepted_record is None:
                violations.add(
                    13, f"the send {call.token!r} was answered, not accepted", call, answer
                )
            elif accepted_record.turn != answer.turn:
                turns = f"turn {accepted_record.turn}, told was {answer.turn}"
                text = f"the send {call.token!r} is in {turns}"
                violations.add(13, text, call, answer, seqs=[accepted_record.seq])
            elif accepted_record.seq > answer.seq:
                text = f"the send {call.token!r} was answered before it was durable"
                violations.add(13, text, call, answer, seqs=[accepted_record.seq])


def _check_order(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
) -> None:
    newest: tuple[r.TurnAccepted, Invoked] | None = None
    for record, call in accepted_sends(session, records).values():
        if newest is not None and call.order < newest[1].order:
            text = f"turn {record.turn} was asked for before turn {newest[0].turn}"
            violations.add(13, text, newest[1], call, seqs=[newest[0].seq, record.seq])
        newest = record, call


def _check_results(
    session: SessionRecording, records: Sequence[r.Record], violations: Violations
) -> None:
    """What a caller submitted for a call, and was told is taken, is what the log has."""
    logged = {
        answer.call_id: (record.seq, digest(answer.content), answer.settled)
        for record in records
        if isinstance(record, r.ToolsAnswered)
        for answer in record.answers
    }
    acceptances: dict[str, tuple[Invoked, Returned]] = {}
    for number, call in session.invoked.items():
        for answer in session.returned.get(number, ()):
            if call.command != "submit":
                continue
            for call_id, content in call.answers:
                seq, accepted_record, settled = logged.get(call_id, (0, "", None))
                if seq > answer.seq:
                    text = f"the result of {call_id!r} was answered before it was durable"
                    violations.add(13, text, call, answer, seqs=[seq])
                if accepted_record != content or settled is not None:
                    text = f"the result of {call_id!r} was taken, and the log has another"
                    violations.add(13, text, call, answer, seqs=[seq])
                earlier = acceptances.setdefault(call_id, (call, answer))
                again = earlier[0] is not call and not _is_repeat(earlier[0], call)
                if again:
                    text = f"the result of {call_id!r} was taken twice"
                    violations.add(13, text, *earlier, call, answer)


def _is_repeat(one: Invoked, other: Invoked) -> bool:
    return one.command_id is not None and one.command_id == other.command_id
