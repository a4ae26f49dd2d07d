"""Messages of the wire, and every error there and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmsession import (
    TextDelta,
    ThinkingDelta,
    ToolInputDelta,
    TurnId,
    TurnOutcome,
    Usage,
    errors,
)
from llmsession.errors import ProtocolError, SessionError
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.errors import ERRORS, from_wire, to_wire
from llmsession.transport.wire.framing import (
    decode_from_client,
    decode_from_server,
    encode,
    encode_preview,
    encode_reply,
)
from llmsession.turns import Preview

OUTCOME = TurnOutcome(
    turn=TurnId("u", 3),
    status="aborted",
    stop_reason="interrupt",
    usage=Usage(1, 2),
    user_body=msgspec.Raw(b'[{"type":"text","text":"x"}]'),
)

SAMPLES: list[SessionError] = [
    errors.SessionError("plain"),
    errors.InvalidInput("wrong"),
    errors.InvalidMessage("empty"),
    errors.InvalidConfig("no model"),
    errors.UnknownToolCall("c1"),
    errors.DuplicateToolResult("c1"),
    errors.ToolsUnbound("s", ("t",)),
    errors.KeyReused("k"),
    errors.TranscriptError("bad", line=7),
    errors.Refused("no"),
    errors.SessionBusy("busy"),
    errors.Overloaded("full", retry_after_s=0.25),
    errors.HeadMoved("a1", "a2"),
    errors.TurnNotOpen(3, "ended"),
    errors.SessionInUse("s", "somebody"),
    errors.SessionInUse("s", "somebody", address="tcp://b:1", view=7),
    errors.Gone("gone"),
    errors.SessionNotFound("s"),
    errors.SessionExists("s"),
    errors.SessionClosed("closed"),
    errors.SessionMoved("moved"),
    errors.TurnEnded("ended", turn=3, outcome=OUTCOME),
    errors.TurnAborted("aborted", turn=3, outcome=OUTCOME),
    errors.TurnFailed("failed", turn=3, cause_kind="fatal", outcome=None),
    errors.ProviderError("busy", kind="retryable", delay_s=2.5, status=529, request_id="r"),
    errors.ContextTooLarge(10, 5),
    errors.BudgetExhausted(
        "spent", whose="tenant", name="t", unit="tokens", limit=5, spent=6, unpriced=("m",)
    ),
    errors.TransportError("lost"),
    errors.Unreachable("away"),
    errors.Unauthenticated("who"),
    errors.ProtocolError("what"),
    errors.StoreError("failed", committed=None),
    errors.RecordDamaged("s", 4, "torn"),
    errors.UnknownRecord("s", 4, "turn.exploded"),
    errors.StoreDamaged("torn"),
]


def test_a_moved_session_is_worth_a_repeat_where_its_new_address_is_known() -> None:
    error = errors.SessionMoved("moved", address="tcp://b:1", view=7)
    known = to_wire(error)
    assert vars(from_wire(known)) == vars(error)
    assert (known.retryable, to_wire(errors.SessionMoved("moved")).retryable) == (True, False)


def test_an_error_of_an_older_service_has_no_address() -> None:
    details = {"owner": msgspec.Raw(b'"x"')}
    error = from_wire(w.Error(code="SessionInUse", message="in use", details=details))
    assert isinstance(error, errors.SessionInUse)
    assert (error.owner, error.address, error.view) == ("x", None, 0)


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_at_the_client(error: SessionError) -> None:
    message = decode_from_server(encode(to_wire(error, id=5)))
    assert isinstance(message, w.Error)
    assert message.id == 5
    told = from_wire(message)
    assert type(told) is type(error)
    assert str(told) == str(error)
    assert msgspec.json.encode(vars(told)) == msgspec.json.encode(vars(error))
    assert {name: type(value) for name, value in vars(told).items()} == {
        name: type(value) for name, value in vars(error).items()
    }


def test_every_error_has_a_sample() -> None:
    assert {type(error).__name__ for error in SAMPLES} == set(ERRORS)


def test_only_what_may_succeed_later_is_retryable() -> None:
    retryable = {type(error).__name__ for error in SAMPLES if to_wire(error).retryable}
    assert retryable == {"SessionBusy", "Overloaded", "SessionInUse", "ProviderError"}
    assert to_wire(errors.StoreError("x", committed=False)).retryable
    assert to_wire(errors.Overloaded("x", retry_after_s=0.5)).retry_after_s == 0.5
    assert not to_wire(errors.ProviderError("x", kind="fatal")).retryable


def test_an_error_of_somebody_elses_class_is_the_nearest_of_ours() -> None:
    class Odd(errors.SessionBusy):
        pass

    assert type(from_wire(to_wire(Odd("x")))) is errors.SessionBusy


def test_a_code_that_is_not_known_is_named() -> None:
    told = from_wire(w.Error(code="FromTheFuture", message="hm"))
    assert type(told) is SessionError
    assert str(told) == "FromTheFuture: hm"


def test_a_record_is_in_an_event_byte_for_byte() -> None:
    body = b'{"kind":"x",  "n": 1.0}'
    event = w.Event(subscription=1, session="s", kind="x", body=msgspec.Raw(body), seq=4)
    frame = encode(event)
    assert body in frame
    told = decode_from_server(frame)
    assert isinstance(told, w.Event)
    assert bytes(told.body) == body


def test_a_command_is_read_strictly_and_a_servers_message_is_not() -> None:
    wrong = decode_from_client(b'{"type":"status","id":3,"session":"s","colour":1}')
    assert isinstance(wrong, w.Error)
    assert (wrong.id, wrong.code) == (3, "InvalidInput")
    assert "colour" in wrong.message
    told = decode_from_server(b'{"type":"ended","subscription":3,"colour":1}')
    assert told == w.Ended(subscription=3)


@pytest.mark.parametrize("frame", [b"", b"x", b"[]", b'{"id":1', b'{"type":"x"}', b"\xff"])
def test_what_is_no_message_is_a_protocol_error(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_client(frame)
    with pytest.raises(ProtocolError):
        decode_from_server(frame)


COMMANDS: list[Any] = [
    w.Create(id=1, config=msgspec.Raw(b"{}"), labels={"a": "b"}),
    w.Send(id=2, session="s", content=msgspec.Raw(b'"x"'), when_busy="steer", expected_head=2),
    w.Submit(id=3, session="s", results=(w.Result("c", msgspec.Raw(b'"x"'), True, "y"),)),
    w.Interrupt(id=4, session="s", turn=1, policy="keep_text", command_id="c"),
    w.Forget(id=5, session="s", moment=2.5),
    w.Fork(id=6, session="s", at=1, fork="f", labels={}),
    w.Subscribe(id=7, session="s", after=0, turn=3),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_is_read_as_it_was_written(command: Any) -> None:
    told = decode_from_client(encode(command))
    assert type(told) is type(command)
    assert encode(told) == encode(command)  # Raw compares by identity


def test_every_message_of_the_wire_is_in_the_protocol_page(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "reference" / "wire.md").read_text("utf-8")
    kinds = (w.Hello, *w.COMMANDS, *w.FromServer.__args__)
    tags = {kind.__struct_config__.tag for kind in kinds}
    missing = {tag for tag in tags if f"`{tag}`" not in page and f'"type":"{tag}"' not in page}
    assert missing == set()


@pytest.mark.parametrize("offset", [0, 120])
@pytest.mark.parametrize(
    "preview",
    [
        TextDelta(1, 2, 3, 4, 'a "word"\n\u2028é'),
        ThinkingDelta(7, 1, 1, 0, "hm"),
        ToolInputDelta(1, 1, 1, 0, "{"),
    ],
    ids=lambda preview: type(preview).__name__,
)
def test_a_preview_is_encoded_as_every_event_is(preview: Preview, offset: int) -> None:
    event = w.Event(
        subscription=9,
        session='a "session" ü',
        kind=preview.__struct_config__.tag,  # type: ignore[arg-type]  # every preview has one
        body=msgspec.Raw(msgspec.json.encode(preview)),
        turn=preview.turn,
        offset=offset,
    )
    for _ in range(2):  # what is remembered, too
        assert encode_preview(9, 'a "session" ü', preview, offset) == encode(event)


@pytest.mark.parametrize("body", [b"null", b'{"turn":1}', '["ü", "%d"]'.encode()])
def test_a_reply_is_encoded_as_every_message_is(body: bytes) -> None:
    for number in (0, 2**53 - 1):
        assert encode_reply(number, body) == encode(w.Reply(id=number, body=msgspec.Raw(body)))
