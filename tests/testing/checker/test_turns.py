"""The course of turns: each rule is broken in a log of a few records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from llmsession.testing.checker.checker import check
from llmsession.testing.recording.entries import Begun, Entry, Invoked, Recording, Rewritten
from llmsession.turns import records as r
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.messages import Message
from llmsession.turns.receipts import PendingReceipt, receipt_text
from llmsession.turns.usage import Usage
from tests.testing.recordings import CONFIG, SESSION, asking, log_of, offers, reply, said, stamped

CALLS = (r.CallReceipt("a", "ask", "unknown", ""),)
ASKED = r.ToolsRequested(turn=1, step=1, reply=asking("a"), calls=offers("a"))
FIRST = r.TurnAccepted(turn=1, body=said("t1: do"), started=True)
WAITS = [r.TurnAccepted(turn=2, body=said("t2: b")), r.TurnAccepted(turn=3, body=said("t3: c"))]


def done(turn: int, used: int = 0) -> r.TurnCommitted:
    usage = Usage(input_tokens=used)
    return r.TurnCommitted(turn=turn, stop_reason="end_turn", usage=usage, reply=reply("ok"))


def crashed(*calls: r.CallReceipt) -> r.TurnAborted:
    return r.TurnAborted(turn=1, reason="crash", usage=Usage(), calls=calls)


def told(records: Sequence[r.Record], *entries: Entry, at: dict[int, float] | None = None) -> str:
    limits = {"tool_deadline_s": 1.0, "limits": {"max_steps": 2, "max_seconds": 5.0}}
    config = msgspec.Raw(encode_json({**CONFIG, **limits}))
    log = log_of(stamped([r.SessionCreated(session=SESSION, config=config), *records]))
    timed = [msgspec.structs.replace(e, at=(at or {}).get(n, 0.0)) for n, e in enumerate(log, 1)]
    violations = check(Recording([Begun(grace_s=0.1), *entries, *timed]), margin_s=0.1)
    return "; ".join(violation.text for violation in violations)


def sends(*modes: str) -> list[Entry]:
    return [
        Invoked(session=SESSION, call=n, command="send", token=f"t{n}", when_busy=mode, order=n)
        for n, mode in enumerate(modes, 1)
    ]


def without_answers(text: str) -> str:
    return "; ".join(part for part in text.split("; ") if "never answered" not in part)


def started(*turns: int) -> list[r.Record]:
    return [each for turn in turns for each in (r.TurnStarted(turn=turn), done(turn))]


def test_turns_start_in_the_order_of_the_queue() -> None:
    queued = sends("queue", "queue", "queue")
    assert without_answers(told([FIRST, *WAITS, done(1), *started(2, 3)], *queued)) == ""
    assert "turn 2 is next" in told([FIRST, *WAITS, done(1), *started(3, 2)], *queued)
    jumps = sends("queue", "queue", "interrupt")
    assert without_answers(told([FIRST, *WAITS, done(1), *started(3, 2)], *jumps)) == ""
    assert "turn 3 is next" in told([FIRST, *WAITS, done(1), *started(2, 3)], *jumps)


def test_a_dropped_turns_calls_are_told_of_and_carried_by_the_next() -> None:
    note = receipt_text([PendingReceipt(1, CALLS)])
    after = r.TurnAccepted(turn=2, body=said("t2: b"), started=True, receipt=note)
    silent = msgspec.structs.replace(after, receipt=None)
    assert told([FIRST, ASKED, crashed(*CALLS), after, done(2)]) == ""
    assert "says nothing of ['a']" in told([FIRST, ASKED, crashed(), silent, done(2)])
    assert "has to carry a note" in told([FIRST, ASKED, crashed(*CALLS), silent, done(2)])


def test_a_turn_that_ends_by_itself_has_read_its_steers() -> None:
    steer = r.SteerAccepted(turn=1, body=said("t2: and"))
    step = r.StepCompleted(turn=1, step=1, reply=reply("first"), steers=1)
    read: list[r.Record] = [FIRST, steer, step, done(1)]
    assert told(read) == ""
    assert "was not read" in told([FIRST, steer, done(1)])


def test_a_turn_says_what_its_requests_used() -> None:
    assert "says that it used" in told([FIRST, done(1, used=7)])


@pytest.mark.parametrize(
    ("answered", "ended", "named"), [(1.1, 2, ""), (2, 2, "too long"), (1.1, 9, "of at most")]
)
def test_calls_and_turns_end_by_their_limits(answered: float, ended: float, named: str) -> None:
    answer = r.Answer(call_id="a", content=msgspec.Raw(b'"x"'))
    records: list[r.Record] = [FIRST, ASKED, r.ToolsAnswered(turn=1, step=1, answers=(answer,)),
               r.StepCompleted(turn=1, step=1), done(1)]  # fmt: skip
    text = told(records, at={2: 0.1, 3: 0.2, 4: answered + 0.1, 6: ended})
    assert named in text if named else text == ""


def test_words_that_were_forgotten_are_in_no_record_of_the_store() -> None:
    secret = r.TurnAccepted(turn=1, body=said(f"s#1: {'a secret ' * 9}"), started=True)
    cleared = r.ConversationCleared(generation=2, purge=True)
    records: list[r.Record] = [secret, done(1), cleared, r.RecordsRedacted()]
    assert "words that were forgotten" in told(records)
    gone = msgspec.structs.replace(secret, body=msgspec.Raw(b"[]"), seq=2, epoch=1)
    rewritten = Rewritten(session=SESSION, seq=2, body=msgspec.Raw(r.encode_record(gone)))
    assert "words that were forgotten" not in told(records, rewritten)


SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}


@pytest.mark.parametrize(
    ("blocks", "fault"),
    [
        ([SEARCH, FOUND], ""),
        ([SEARCH], "committed the server calls ['s'] without results"),
        ([FOUND], "committed the server's result 's', which nothing asked for"),
    ],
)
def test_a_turn_ends_with_no_server_call_or_result_alone(
    blocks: list[dict[str, object]], fault: str
) -> None:
    words: dict[str, object] = {"type": "text", "text": "t1: hi"}
    user = Message(id="u", session=SESSION, turn=1, role="user", body=encode_blocks([words]))
    body = encode_blocks([words, *blocks])
    answer = Message(id="a", session=SESSION, turn=1, role="assistant", body=body)
    imported = r.TurnImported(turn=1, messages=(user, answer))
    assert told([imported]).removeprefix("turn 1 ") == fault
