"""What a client and a service of different versions say to each other. A client ignores the kinds
of events and the fields that it does not know. What else one of them cannot read is an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmsession import SqliteStore, TextDelta, connect, records
from llmsession.errors import ProtocolError, UnknownRecord
from llmsession.store.protocol import Owner
from llmsession.testing.store_contract.actions import written
from llmsession.transport import SessionInterface
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import encode
from tests.transport.places import CONFIG, address_of, serving

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

STARTED = {"kind": "turn.started", "seq": 3, "turn": 1}
ENDED = {
    "kind": "turn.committed", "seq": 5, "turn": 1, "stop_reason": "end_turn", "usage": {},
}  # fmt: skip


class OtherService:
    """A service of another version: a socket that answers every command, and has one session whose
    log is *events*."""

    def __init__(self, events: list[dict[str, Any]], version: int = w.VERSION) -> None:
        self._events = events
        self._version = version
        self.unsubscribed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**message: Any) -> None:
            writer.write(json.dumps(message).encode() + b"\n")

        while line := await reader.readline():
            command = json.loads(line)
            number = command.get("id")
            match command["type"]:
                case "hello":
                    say(
                        type="welcome", version=self._version, server="another", mood="fine",
                        max_frame_bytes=1_000_000, keepalive_s=20.0,
                    )  # fmt: skip
                case "subscribe":
                    say(type="reply", id=number, body={"cursor": command.get("after", 0)})
                    for event in self._events:
                        say(type="event", subscription=number, session="s", **event)
                    say(type="ended", subscription=number)
                case "unsubscribe":
                    self.unsubscribed.set()
                    say(type="reply", id=number, body=None)
                case "goodbye":
                    break
                case _:
                    say(type="reply", id=number, body={"session": "s", "seq": 0})
        writer.close()


@asynccontextmanager
async def a_session_of(service: OtherService, folder: Path) -> AsyncIterator[SessionInterface]:
    path = f"{folder}/other.sock"
    server = await asyncio.start_unix_server(service.serve, path)
    async with asyncio.timeout(100), server, connect(f"unix:{path}") as there:
        yield await there.open("s")


def durable(**body: Any) -> dict[str, Any]:
    return {"kind": body["kind"], "seq": body["seq"], "turn": 1, "body": body}


def preview(kind: str, text: str, offset: int = 0) -> dict[str, Any]:
    body = {"kind": kind, "turn": 1, "step": 1, "attempt": 1, "index": 0, "text": text}
    return {"kind": kind, "turn": 1, "offset": offset, "body": body}


async def test_a_client_passes_over_kinds_of_events_and_fields_that_it_does_not_know(
    tmp_path: Path,
) -> None:
    service = OtherService(
        [
            durable(**STARTED, invented={"a": [1]}),
            preview("preview.music", "la"),
            preview("preview.text", "hel"),
            durable(kind="turn.exploded", seq=4, turn=1, how="loudly"),
            {"kind": "step.danced", "turn": 1, "body": {"turn": 1, "step": 1}},
            preview("preview.text", "lo", 3) | {"colour": "green"},
            durable(**ENDED),
        ]
    )
    async with a_session_of(service, tmp_path) as session:
        events = [event async for event in session.subscribe(after=0)]
    kinds = [type(event) for event in events if not isinstance(event, TextDelta)]
    assert kinds == [records.TurnStarted, records.TurnCommitted]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "hello"


async def test_an_event_of_a_known_kind_that_a_client_cannot_read_ends_its_subscription(
    tmp_path: Path,
) -> None:
    service = OtherService([durable(**STARTED), durable(**{**ENDED, "settle": "by a new reason"})])
    async with a_session_of(service, tmp_path) as session:
        subscription = session.subscribe(after=0)
        assert isinstance(await anext(subscription), records.TurnStarted)
        with pytest.raises(ProtocolError, match=r"event 5 of session 's' is a turn\.committed"):
            await anext(subscription)
        await service.unsubscribed.wait()


async def test_a_client_refuses_a_service_that_goes_on_with_another_version(
    tmp_path: Path,
) -> None:
    said = f"speaks version {w.VERSION + 1} of the protocol, and this client version {w.VERSION}: "
    with pytest.raises(ProtocolError, match=said):
        async with a_session_of(OtherService([], w.VERSION + 1), tmp_path):
            pass


def of_a_newer_client(message: w.FromClient) -> bytes:
    if isinstance(message, w.Hello):
        message = msgspec.structs.replace(message, versions=(w.VERSION + 1, w.VERSION + 2))
    return encode(message)


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_a_service_names_the_versions_that_it_has_not_in_common_with_a_client(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(address_of(kind, tmp_path)) as served:
        monkeypatch.setattr("llmsession.transport.client.link.encode", of_a_newer_client)
        said = rf"version {w.VERSION} of the protocol is spoken here, and none of \[3, 4\]: upgrade"
        with pytest.raises(ProtocolError, match=said):
            async with connect(served.address):
                pass


@pytest.mark.parametrize("kind", ["unix", "grpc"])
async def test_a_client_is_told_of_a_record_that_a_newer_version_wrote(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "s.db"
    async with serving(address_of(kind, tmp_path), ["fine"], store=SqliteStore(path)) as served:
        for name in ("new", "old"):
            await served.manager.create(CONFIG, session_id=name)
    store = SqliteStore(path)
    lease = await store.acquire("new", Owner("a newer process"))
    body = f'{{"kind":"turn.exploded","seq":2,"epoch":{lease.epoch},"at":1.0}}'
    await store.release(await written(store, lease, body.encode()))
    await store.aclose()
    async with (
        serving(address_of(kind, tmp_path), ["fine"], store=SqliteStore(path)) as served,
        connect(served.address) as there,
    ):
        with pytest.raises(UnknownRecord, match="upgrade llmsession") as raised:
            await there.open("new")
        assert (raised.value.session, raised.value.seq) == ("new", 2)
        assert raised.value.kind == "turn.exploded"
        with pytest.raises(UnknownRecord):
            await there.export_conversation("new")
        session = await there.open("old")
        assert await (await session.send("hello")).text() == "fine"
