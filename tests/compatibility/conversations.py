"""The wire of a release: what a client and a service of it said to each other, and how today's
service answers the same client.

A recording is a list of frames in the order in which the client saw them. The client's side is said
again to another service: each frame once everything has come that had come before it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from llmsession import MemoryStore, SessionManager
from llmsession.transport import GrpcServer, Service, SocketServer
from llmsession.transport.v1.session_pb2 import Command, Envelope
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import encode

from .provider import answering
from .stores import NOW

__all__ = [
    "GrpcCall",
    "Line",
    "differences",
    "record_calls",
    "record_frames",
    "replay_calls",
    "say",
]

Line: TypeAlias = dict[str, Any]
"""``{"from": "client" or "server", "frame": {...}}``. With ``made`` no service has sent it in this
conversation: it is what a service may send at any time."""
GrpcCall: TypeAlias = dict[str, Any]
"""``{"method", "request", "answers", "code"}``: messages in base64."""
Key: TypeAlias = tuple[Any, ...]

SERVICE = "/llmsession.v1.SessionService/"
PATIENCE_S = 100.0
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {"path": {}}}}
CONFIG = {"model": "m", "system": "Be brief.", "tools": [TOOL]}


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """A new service: the path of its socket, and the target of its gRPC server."""
    async with (
        SessionManager(provider=answering(), store=MemoryStore(), clock=lambda: NOW) as manager,
        Service(manager) as service,
        SocketServer(service, f"unix:{folder}/wire.sock"),
        GrpcServer(service, "grpc://127.0.0.1:0") as over_grpc,
    ):
        yield f"{folder}/wire.sock", over_grpc.address.removeprefix("grpc://")


def key_of(frame: dict[str, Any]) -> Key | None:
    """What tells *frame* of a service from the others; None for one that may come at any time."""
    match frame["type"]:
        case "reply" | "error":
            return ("answer", frame.get("id"))
        case "event" if frame["kind"].startswith("preview."):
            # Pieces are merged as they come: the first one stands for all.
            return ("preview", frame["subscription"], frame["kind"], frame["turn"])
        case "event":
            # Not by its seq: records that do not wait for each other may change places.
            return ("event", frame["subscription"], frame["kind"], frame.get("turn"))
        case "ended" | "lagged":
            return (frame["type"], frame["subscription"])
        case "ping":
            return None
    return (frame["type"],)


class _Client:
    """One connection over a socket, and what was said over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.lines: list[Line] = []
        self.seen: set[Key] = set()

    def say(self, frame: dict[str, Any]) -> None:
        self._writer.write(json.dumps(frame).encode() + b"\n")
        self.lines.append({"from": "client", "frame": frame})

    async def until(self, *keys: Key) -> None:
        """Read until everything has come that *keys* name."""
        while not self.seen.issuperset(keys):
            await self.read()

    async def read(self) -> None:
        """Read the next frame."""
        line = await self._reader.readline()
        if not line:
            raise EOFError(f"the service closed the connection after {self.lines[-1]}")
        frame = json.loads(line)
        if frame["type"] == "ping":  # of a slow machine, which is no part of the conversation
            self._writer.write(b'{"type":"pong"}\n')
            return
        self.lines.append({"from": "server", "frame": frame})
        key = key_of(frame)
        if key is not None:
            self.seen.add(key)


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[_Client]:
    async with asyncio.timeout(PATIENCE_S), served(folder) as (path, _):
        reader, writer = await asyncio.open_unix_connection(path, limit=2**26)
        try:
            yield _Client(reader, writer)
        finally:
            writer.close()


async def say(lines: Sequence[Line], folder: Path) -> list[Line]:
    """What a service of today and the client of *lines* say to each other."""
    async with connected(folder) as client:
        before: list[Key] = []
        for line in lines:
            if line.get("made"):
                continue
            if line["from"] == "server":
                key = key_of(line["frame"])
                if line["frame"].get("seq"):  # previews before a durable event may be lost
                    turn = line["frame"].get("turn")
                    before = [k for k in before if k[0] != "preview" or k[-1] != turn]
                if key is not None:
                    before.append(key)
                continue
            await client.until(*before)
            client.say(line["frame"])
        await client.until(*before)
        return client.lines


# Making a recording.


async def record_frames(folder: Path) -> list[Line]:
    """A conversation with every command, every kind of frame and of preview, and some errors."""
    async with connected(folder) as client:
        await _converse(client)
        lines = client.lines
    made: list[w.FromServer] = [w.Lagged(subscription=9, cursor=41), w.Ping()]
    lines += [
        {"from": "server", "frame": json.loads(encode(message)), "made": True} for message in made
    ]
    commands = {line["frame"]["type"] for line in lines if line["from"] == "client"}
    missing = {w.tag_of(kind) for kind in w.COMMANDS} - commands
    if missing:
        raise SystemExit(f"the recording has no command of the types {sorted(missing)}")
    return lines


async def _converse(client: _Client) -> None:
    numbers = iter(range(1, 1_000))

    async def ask(type: str, **fields: Any) -> None:
        """A command, and its answer."""
        number = next(numbers)
        client.say({"type": type, "id": number, **fields})
        await client.until(("answer", number))

    async def ended(turn: int, how: str) -> None:
        while not any(
            line["frame"].get("kind") == how and line["frame"].get("turn") == turn
            for line in client.lines
        ):
            await client.read()

    client.say({"type": "ping"})
    await client.until(("pong",))
    client.say({"type": "hello", "versions": [w.VERSION], "client": "recorded"})
    await client.until(("welcome",))
    labels = {"user": "7"}
    seed = {"text": "They met before.", "session": "old"}
    await ask("create", config=CONFIG, session="s", labels=labels, seed=seed, command_id="c-1")
    await ask("create", config=CONFIG, session="s")  # SessionExists
    await ask("open", session="s")
    client.say({"type": "subscribe", "id": 900, "session": "s", "after": 0})
    await client.until(("answer", 900))

    await ask("send", session="s", content="call look please", command_id="s-1")
    await ended(1, "tools.requested")
    for query in ("open_calls", "status", "context", "will_compact"):
        await ask(query, session="s")
    await ask("conversation", session="s", include_open=True)
    result = {"call_id": "c1_1", "content": "A heron.", "compact_summary": "a heron"}
    await ask("submit", session="s", results=[{**result, "call_id": "none"}])  # UnknownToolCall
    await ask("submit", session="s", results=[result], command_id="r-1")
    await ended(1, "turn.committed")
    await ask("outcome", session="s", turn=1)

    blocks = [{"type": "text", "text": "think about herons"}]
    await ask("send", session="s", content=blocks, expected_head=1)
    await ended(2, "turn.committed")
    await ask("send", session="s", content="hang now")
    await client.until(("preview", 900, "preview.text", 3))
    await ask("send", session="s", content="no", when_busy="reject")  # SessionBusy
    await ask("interrupt", session="s", turn=3, policy="drop_turn", command_id="i-1")
    await ended(3, "turn.aborted")
    await ask("interrupt", session="s")
    await ask("send", session="s", content="fail now")
    await ended(4, "turn.failed")
    await ask("outcome", session="s", turn=4)
    await ask("send", session="s", content="again please")
    await ended(5, "turn.committed")
    client.say({"type": "subscribe", "id": 901, "session": "s", "turn": 1})
    await client.until(("ended", 901))

    await ask("label", session="s", labels={"user": "8"}, title="Herons", command_id="l-1")
    await ask("configure", session="s", changes={"system": "Be very brief."})
    await ask("store_summaries", session="s", summaries={"c1_1": "it saw a heron"})
    await ask("set_summary", session="s", text="They spoke of herons.", upto=1)
    await ask("compact", session="s")
    for query in ("usage", "summary", "compact_summaries", "row", "export", "conversation"):
        await ask(query, session="s")
    await ask("fork", session="s", fork="f", labels={"of": "s"}, command_id="f-1")
    await ask("rewind", session="f", to=1)
    await ask("forget", session="s", turn=2)
    await ask("clear", session="f", purge=True)
    await ask("list", titles=True)
    await ask("search", query="herons")
    await ask("statistics")

    await ask("send", session="s", content="other words", command_id="s-1")  # KeyReused
    await ask("send", session="s", content="too late", expected_head=1)  # HeadMoved
    await ask("send", session="nobody", content="hello")  # SessionNotFound
    await ask("send", session="s", content="hello", colour="grey")  # InvalidInput
    await ask("unsubscribe", subscription=900)
    await ask("delete", session="f")
    await ask("close", session="s")
    client.say({"type": "goodbye", "reason": "that is all"})
    await client.until(("goodbye",))


async def record_calls(folder: Path) -> list[GrpcCall]:
    """Calls of the generated stubs, with their messages as bytes."""
    calls: list[tuple[str, Command]] = [
        ("Create", _command("s", "c-1", config=CONFIG)),
        ("Send", _command("s", "s-1", content="say hello")),
        ("Outcome", _command("s", turn=1)),
        ("Subscribe", _command("s", after=0, turn=1)),
        ("Conversation", _command("s")),
        ("Status", _command("s")),
        ("List", _command()),
        ("Send", _command("nobody", content="say hello")),
        ("CloseSession", _command("s")),
    ]
    recorded = [
        {"method": method, "request": base64.b64encode(command.SerializeToString()).decode()}
        for method, command in calls
    ]
    return await replay_calls(recorded, folder)


def _command(session: str = "", command_id: str = "", **fields: Any) -> Command:
    return Command(session=session, command_id=command_id, body=json.dumps(fields).encode())


async def replay_calls(calls: Sequence[GrpcCall], folder: Path) -> list[GrpcCall]:
    """*calls* again, at a service of today, with its answers."""
    answered = []
    async with (
        asyncio.timeout(PATIENCE_S),
        served(folder) as (_, target),
        grpc.aio.insecure_channel(target) as channel,
    ):
        for call in calls:
            request = base64.b64decode(call["request"])
            answers, code = await _call(channel, call["method"], request)
            encoded = [base64.b64encode(answer).decode() for answer in answers]
            answered.append({**call, "answers": encoded, "code": code})
    return answered


async def _call(channel: grpc.aio.Channel, method: str, request: bytes) -> tuple[list[bytes], str]:
    """The messages that the call is answered with, and its status."""
    try:
        if method == "Subscribe":
            stream: Any = channel.unary_stream(SERVICE + method)
            answers = [answer async for answer in stream(request)]
            return [answer for answer in answers if not _is_preview(answer)], "OK"
        unary: Any = channel.unary_unary(SERVICE + method)
        return [await unary(request)], "OK"
    except grpc.aio.AioRpcError as error:
        return [], error.code().name


def _is_preview(answer: bytes) -> bool:
    return Envelope.FromString(answer).kind.startswith("preview.")


# Comparing.


WORDS = frozenset({"type", "kind", "code", "result", "status", "role", "session", "runner"})
"""Fields that a client decides by: their values are part of what was said."""


def differences(recorded: Any, today: Any, path: str = "") -> list[str]:
    """What a client that could read *recorded* may not be able to read in *today*: fields that are
    not there any more, values of another type, other words in the fields that it decides by. More
    fields are no difference."""
    if isinstance(recorded, dict):
        if not isinstance(today, dict):
            return [f"{path}: {_type(recorded)} became {_type(today)}"]
        found = []
        for name, value in recorded.items():
            place = f"{path}.{name}"
            if name not in today:
                found.append(f"{place}: it is gone")
            elif name in WORDS and isinstance(value, str) and value != today[name]:
                found.append(f"{place}: {value!r} became {today[name]!r}")
            else:
                found += differences(value, today[name], place)
        return found
    if isinstance(recorded, list):
        if not isinstance(today, list) or len(today) < len(recorded):
            return [f"{path}: a list of {len(recorded)} became {_type(today)}"]
        pairs = zip(recorded, today, strict=False)
        return [line for n, pair in enumerate(pairs) for line in differences(*pair, f"{path}[{n}]")]
    return [] if _type(recorded) == _type(today) else [f"{path}: {recorded!r} became {today!r}"]


def _type(value: Any) -> str:
    kinds: dict[type, str] = {bool: "a flag", int: "a number", float: "a number", str: "a text"}
    return kinds.get(type(value), "nothing" if value is None else f"a {type(value).__name__}")
