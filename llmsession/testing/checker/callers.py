"""Who asked was answered, once, and what was answered stands in the log; and interrupts: what they
may stop, what they must have stopped, and when they answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmsession.session.log.redaction import NOTHING_SAID
from llmsession.turns import records as r
from llmsession.turns.blocks import TextBlock, parse_blocks

from ..recording.entries import End, Invoked, Refused, Returned, SessionRecording
from ..recording.fingerprints import digest
from ..recording.violation import Violations

__all__ = ["accepted_sends", "check_callers", "check_interrupts", "status_of", "token_of"]

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


def status_of(record: r.Terminal) -> End:
    """The end that a terminal record says."""
    match record:
        case r.TurnCommitted():
            return End(record.turn, "committed", record.stop_reason)
        case r.TurnAborted():
            return End(record.turn, "aborted", record.reason)
        case r.TurnFailed():
            return End(record.turn, "failed", record.cause)


def check_interrupts(
    session: SessionRecording,
    records: Sequence[r.Record],
    violations: Violations,
    answered_within_s: float,
) -> None:
    """Invariants 7 and 8, and that an interrupt's answer is what the log says."""
    sends = accepted_sends(session, records)
    ends = {record.turn: record for record in records if r.is_terminal(record)}
    sent = _said(session, records)
    interrupts = [call for call in session.invoked.values() if call.command == "interrupt"]
    _check_causes(session, sends, ends, violations)
    for call in interrupts:
        if call.call in session.refused:
            continue
        for answer in session.returned.get(call.call, ()):
            took_s = answer.at - call.at
            if took_s > answered_within_s:
                text = f"an interrupt took {took_s:.3f} s, more than {answered_within_s:.3f} s"
                violations.add(8, text, call, answer)
            _check_answer(call, answer, ends, violations)
            _check_returned(call, answer, sent, violations)
            if call.turn is None and not _is_repeated(call, interrupts):
                _check_cover(call, answer, sends, ends, violations)


def _is_repeated(call: Invoked, interrupts: Sequence[Invoked]) -> bool:
    """A repeat stops nothing: it gets the answer of the first."""
    if call.command_id is None:
        return False
    return any(
        other.command_id == call.command_id and other.order < call.order for other in interrupts
    )


def _check_causes(
    session: SessionRecording,
    sends: dict[int, tuple[r.TurnAccepted, Invoked]],
    ends: dict[int, r.Terminal],
    violations: Violations,
) -> None:
    """A turn that was interrupted or replaced was so by something that came after its send."""
    for turn, end in ends.items():
        send = sends.get(turn)
        reason = status_of(end).stop_reason
        if send is None or reason not in ("interrupt", "replaced", "cancelled"):
            continue
        order = send[1].order
        interrupted = any(_may_stop(call, turn, order) for call in session.invoked.values())
        replaced = any(_may_replace(call, order) for call in session.invoked.values())
        closed = bool(session.ended)
        allowed = {
            "interrupt": interrupted,
            "replaced": replaced,
            "cancelled": interrupted or replaced or closed,
        }
        if not allowed[reason]:
            text = f"turn {turn} ended as {reason}, and nothing that came after its send asked so"
            earlier = [call for call in session.invoked.values() if call.command == "interrupt"]
            violations.add(7, text, send[1], *earlier[:2], seqs=[send[0].seq, end.seq])


def _may_stop(call: Invoked, turn: int, order: int) -> bool:
    if call.command in _ENDS_TURNS and call.when_busy == "interrupt":
        return call.order > order
    if call.command != "interrupt":
        return False
    return call.turn == turn or (call.turn is None and call.order > order)


_ENDS_TURNS = ("clear", "rewind", "forget", "fork")
"""Commands on the whole history: what is open is interrupted first, where the caller says so."""


def _may_replace(call: Invoked, order: int) -> bool:
    return call.command == "send" and call.when_busy == "interrupt" and call.order > order


def _check_answer(
    call: Invoked, answer: Returned, ends: dict[int, r.Terminal], violations: Violations
) -> None:
    for told_end in answer.ended:
        end = ends.get(told_end.turn)
        sent = End(told_end.turn, told_end.status, told_end.stop_reason)
        if end is None or status_of(end) != sent:
            seqs = [end.seq] if end else []
            text = f"an interrupt said that turn {told_end.turn} ended {told_end.status}"
            violations.add(3, f"{text}; the log says otherwise", call, answer, seqs=seqs)
        elif end.seq > answer.seq:
            text = f"an interrupt was answered before the end of turn {told_end.turn} was durable"
            violations.add(8, text, call, answer, seqs=[end.seq])
    main = ends.get(answer.turn or 0)
    expected = {"aborted": ("aborted",), "kept": ("committed",), "too_late": _DECIDED}
    allowed = expected.get(answer.result or "")
    # Decided is not durable yet: where that write failed, recovery wrote the end.
    lost = (
        main is not None and answer.result == "too_late" and status_of(main).stop_reason == "crash"
    )
    if main is not None and not lost and allowed and status_of(main).status not in allowed:
        text = f"an interrupt of turn {answer.turn} answered {answer.result}"
        text = f"{text}; the turn was {status_of(main).status}"
        violations.add(3, text, call, answer, seqs=[main.seq])
    elif main is not None and answer.result == "kept" and status_of(main).stop_reason != _KEPT:
        text = f"an interrupt says that it kept turn {answer.turn}, which ended by itself"
        violations.add(3, text, call, answer, seqs=[main.seq])


def _said(session: SessionRecording, records: Sequence[r.Record]) -> dict[int, tuple[int, str]]:
    """What was said in each turn that was not forgotten since: the seq that has it, its digest."""
    return {
        record.turn: (record.seq, digest(record.body))
        for record in records
        if isinstance(record, r.TurnAccepted)
        and record.body != NOTHING_SAID
        and record.seq not in session.rewritten
    }


def _check_returned(
    call: Invoked, answer: Returned, sent: dict[int, tuple[int, str]], violations: Violations
) -> None:
    """What a turn that was dropped had been told comes back to who dropped it."""
    for end in answer.ended:
        seq, digest_of_it = sent.get(end.turn, (0, None))
        if seq and end.returned is not None and end.returned != digest_of_it:
            text = f"an interrupt dropped turn {end.turn} and gave other words back than it was of"
            violations.add(3, text, call, answer, seqs=[seq])


_KEPT = "cancelled"
"""The stop reason of a turn that an interrupt kept."""
_DECIDED = ("committed", "failed")


def _check_cover(
    call: Invoked,
    answer: Returned,
    sends: dict[int, tuple[r.TurnAccepted, Invoked]],
    ends: dict[int, r.Terminal],
    violations: Violations,
) -> None:
    """When an interrupt without a turn is answered, every send before it has ended, but one
    whose end was decided already."""
    for turn, (record, send) in sends.items():
        if send.order >= call.order or (answer.result == "too_late" and answer.turn == turn):
            continue
        if answer.owner and answer.owner != record.epoch:
            continue  # one of the two does not know yet that the session has another owner
        end = ends.get(turn)
        if end is None or end.seq > answer.seq:
            text = f"turn {turn} was open when an interrupt was answered that came after its send"
            violations.add(7, text, send, call, answer, seqs=[record.seq, end.seq if end else 0])
