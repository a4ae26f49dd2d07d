"""Whatever is sent: an error to that connection, and nothing to the others."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from llmsession import connect
from llmsession.session.manager import runtime_of
from llmsession.transport import Limits, Service
from llmsession.transport.wire import messages as w
from llmsession.transport.wire.framing import decode_from_server
from llmsession.transport.wire.progress import PROGRESS_BYTES
from tests.transport.places import CONFIG, PATIENCE_S, serving, until

pytestmark = [pytest.mark.real_time, pytest.mark.sockets]

M = TypeVar("M")
HELLO = b'{"type":"hello","versions":[2]}\n'
LIMITS = Limits(frame_bytes=100_000, hello_s=0.5, keepalive_s=0.5)


class Raw:
    """A peer that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.transport: Any = writer.transport
        """A read transport, too, which its type does not say."""

    async def say(self, sent: bytes) -> None:
        self.writer.write(sent)
        await self.writer.drain()

    async def hear(self) -> w.FromServer:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                line = await self.reader.readuntil(b"\n")
                message = decode_from_server(line)
                if not isinstance(message, w.Ping):
                    return message

    async def hear_a(self, kind: type[M]) -> M:
        """The next message, which must be of *kind*."""
        message = await self.hear()
        assert isinstance(message, kind), message
        return message

    async def hear_all(self) -> list[w.FromServer]:
        """Everything up to the end of the connection."""
        heard = []
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                heard.append(await self.hear())
        return heard

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class Wire:
    def __init__(self, path: str, service: Service) -> None:
        self.path = path
        self.service = service

    @asynccontextmanager
    async def peer(self, *, authenticated: bool = True) -> AsyncIterator[Raw]:
        peer = Raw(*await asyncio.open_unix_connection(self.path, limit=1 << 20))
        try:
            if authenticated:
                await peer.say(HELLO)
                await peer.hear_a(w.Welcome)
            yield peer
        finally:
            await peer.close()


@asynccontextmanager
async def wire(tmp_path: Path, limits: Limits = LIMITS) -> AsyncIterator[Wire]:
    """A service with a session ``s``, and beside what is tried a client that must not notice."""
    address, script = f"unix:{tmp_path}/s.sock", lambda request, tag: "fine"
    async with (
        serving(address, script, limits=limits) as served,
        connect(address) as bystander,
    ):
        service = served.service
        session = await bystander.create(CONFIG, session_id="s")
        yield Wire(f"{tmp_path}/s.sock", service)
        assert await (await session.send("still there?")).text() == "fine"
        await until(lambda: service.statistics().connections == 1)


NO_MESSAGES = {
    "no JSON": b"hello\n",
    "half an object": b'{"type":"send"\n',
    "invalid UTF-8": b'{"type":"status","id":1,"session":"\xff\xfe"}\n',
    "invalid UTF-8 in content": b'{"type":"send","id":1,"session":"s","content":"\xc3\x28"}\n',
    "no object": b"[1,2,3]\n",
    "no type": b'{"session":"s"}\n',
    "another type": b'{"type":"shout","session":"s"}\n',
    "a type that is no text": b'{"type":7}\n',
    "an id that is no number": b'{"type":"status","id":"1","session":"s"}\n',
    "an id below zero": b'{"type":"status","id":-1,"session":"s"}\n',
    "an id that is too large": b'{"type":"status","id":9007199254740993,"session":"s"}\n',
    "nested without end": b"[" * 90_000 + b"\n",
    "content nested without end":
        b'{"type":"send","id":1,"session":"s","content":' + b"[" * 90_000 + b"\n",
    "zeros": b"\x00" * 1000 + b"\n",
    "a second hello": HELLO,
}  # fmt: skip


@pytest.mark.parametrize("frame", NO_MESSAGES.values(), ids=NO_MESSAGES)
async def test_what_is_no_message_ends_its_connection_and_no_other(
    tmp_path: Path, frame: bytes
) -> None:
    async with wire(tmp_path) as on, on.peer() as peer:
        await peer.say(frame)
        error, goodbye = await peer.hear_all()
        assert isinstance(error, w.Error)
        assert (error.id, error.code) == (None, "ProtocolError")
        assert isinstance(goodbye, w.Goodbye)


WRONG = {
    "a field that is missing": b'{"type":"send","id":7,"session":"s"}\n',
    "a field of another type": b'{"type":"status","id":7,"session":5}\n',
    "a field that there is not": b'{"type":"status","id":7,"session":"s","color":"red"}\n',
    "a word that there is not":
        b'{"type":"send","id":7,"session":"s","content":"x","when_busy":"never"}\n',
    "content that is none": b'{"type":"send","id":7,"session":"s","content":5}\n',
    "content that is deep": b'{"type":"send","id":7,"session":"s","content":[{"type":"x","y":'
        + b"[" * 700 + b"]" * 700 + b"}]}\n",
    "a page before the first": b'{"type":"conversation","id":7,"session":"s","after":-1}\n',
    "a cursor from elsewhere": b'{"type":"subscribe","id":7,"session":"s","after":-5}\n',
    "a configuration that is none": b'{"type":"create","id":7,"config":[]}\n',
    "changes that are none": b'{"type":"configure","id":7,"session":"s","changes":3}\n',
    "a session with no name": b'{"type":"open","id":7,"session":""}\n',
}  # fmt: skip


@pytest.mark.parametrize("frame", WRONG.values(), ids=WRONG)
async def test_a_wrong_command_is_answered_and_the_connection_goes_on(
    tmp_path: Path, frame: bytes
) -> None:
    async with wire(tmp_path) as on, on.peer() as peer:
        await peer.say(frame)
        error = await peer.hear_a(w.Error)
        assert error.id == 7
        assert error.code in ("InvalidInput", "InvalidMessage", "InvalidConfig", "SessionNotFound")
        await peer.say(b'{"type":"status","id":8,"session":"s"}\n')
        reply = await peer.hear_a(w.Reply)
        assert reply.id == 8


async def test_a_lone_surrogate_is_replaced_as_in_every_text(tmp_path: Path) -> None:
    async with wire(tmp_path) as on, on.peer() as peer:
        await peer.say(b'{"type":"send","id":7,"session":"s","content":"a\\ud800"}\n')
        await peer.hear_a(w.Reply)
        session = await on.service.manager.open("s")
        await session.turn(1).outcome()
        assert session.conversation()[0].text == "a\ufffd"


async def test_before_the_hello_nothing_is_answered_but_a_ping(tmp_path: Path) -> None:
    async with wire(tmp_path) as on:
        async with on.peer(authenticated=False) as peer:
            await peer.say(b'{"type":"ping"}\n')
            await peer.hear_a(w.Pong)
            await peer.say(b'{"type":"status","id":1,"session":"s"}\n')
            assert [type(each) for each in await peer.hear_all()] == [w.Error, w.Goodbye]
        async with on.peer(authenticated=False) as peer:
            await peer.say(b'{"type":"hello","versions":[1,3]}\n')
            error = await peer.hear_a(w.Error)
            assert "version" in error.message


async def test_a_frame_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    async with wire(tmp_path) as on:
        for authenticated, size in ((True, 100_001), (False, 65 * 1024)):
            async with on.peer(authenticated=authenticated) as peer:
                await peer.say(b"x" * size)  # no line end
                error = await peer.hear_a(w.Error)
                assert (error.code, "has more than" in error.message) == ("ProtocolError", True)


async def test_frames_come_byte_by_byte_and_many_at_once(tmp_path: Path) -> None:
    async with wire(tmp_path) as on, on.peer(authenticated=False) as peer:
        frames = HELLO + b'{"type":"status","id":1,"session":"s"}\n\n  \n'
        for at in range(len(frames)):
            await peer.say(frames[at : at + 1])
            await asyncio.sleep(0)
        await peer.hear_a(w.Welcome)
        await peer.hear_a(w.Reply)
        frame = b'{"type":"usage","id":%d,"session":"s"}\n'
        await peer.say(b"".join(frame % number for number in range(500)))
        replies = [await peer.hear() for _ in range(500)]
        assert [reply.id for reply in replies if isinstance(reply, w.Reply)] == list(range(500))


async def test_a_peer_that_has_said_all_may_still_read_its_answers(tmp_path: Path) -> None:
    async with wire(tmp_path) as on, on.peer() as peer:
        await runtime_of(on.service.manager).evict_idle()
        frame = b'{"type":"send","id":%d,"session":"s","content":"hi"}\n'
        frames = [frame % number for number in range(20)]
        await peer.say(b"".join(frames) + b'{"type":"outcome","id":20,"session":"s","turn":1}\n')
        peer.writer.write_eof()
        heard = await peer.hear_all()
        replies = [each.id for each in heard if isinstance(each, w.Reply) and each.id < 20]
        assert replies == list(range(20))
        assert type(heard[-1]) is w.Goodbye


async def test_a_peer_without_a_place_may_say_hello_before_it_reads_so(tmp_path: Path) -> None:
    limits = replace(LIMITS, connections=1)
    async with wire(tmp_path, limits) as on, on.peer(authenticated=False) as peer:
        error = await peer.hear_a(w.Error)
        await peer.say(HELLO)  # on a closed Unix socket this is a broken pipe
        assert (error.code, await peer.hear_all()) == ("Overloaded", [])


async def test_a_peer_that_leaves_at_once_is_done_as_it_said(tmp_path: Path) -> None:
    async with wire(tmp_path) as on:
        async with on.peer() as peer:
            await runtime_of(on.service.manager).evict_idle()
            await peer.say(b'{"type":"send","id":1,"session":"s","content":"bye"}\n')
        session = await on.service.manager.open("s")
        await until(lambda: len(session.conversation()) == 2)


@pytest.mark.parametrize("sent", [b"", b'{"type":"hel', HELLO, HELLO + b'{"type":"st'])
async def test_a_silent_or_dripping_peer_is_dropped(tmp_path: Path, sent: bytes) -> None:
    async with wire(tmp_path) as on, on.peer(authenticated=False) as peer:
        await peer.say(sent)

        async def drip() -> None:
            with suppress(OSError):
                while not peer.reader.at_eof():
                    await asyncio.sleep(0.05)
                    await peer.say(b" ")

        dripping = asyncio.ensure_future(drip())
        await peer.hear_all()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)


async def test_a_frame_may_take_longer_than_a_keepalive_and_its_sender_hears_pings(
    tmp_path: Path,
) -> None:
    limits = Limits(keepalive_s=0.1)
    async with wire(tmp_path, limits) as on, on.peer() as peer:
        await peer.say(b'{"type":"status","id":7,"session":"s"')
        ping = asyncio.ensure_future(peer.reader.readuntil(b"\n"))
        pings = 0
        while pings < 8:  # one for each half of a keepalive
            await peer.say(b" " * PROGRESS_BYTES)
            await asyncio.sleep(0.01)  # a slow network
            if ping.done():
                assert ping.result() == b'{"type":"ping"}\n'
                pings += 1
                ping = asyncio.ensure_future(peer.reader.readuntil(b"\n"))
        await peer.say(b"}\n")
        line = await ping
        while line == b'{"type":"ping"}\n':
            line = await peer.reader.readuntil(b"\n")
        reply = decode_from_server(line)
        assert isinstance(reply, w.Reply)
        assert reply.id == 7


async def test_a_peer_that_answers_pings_may_be_silent_for_long(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(LIMITS, keepalive_s=0.2)
    async with wire(tmp_path, limits) as on, on.peer() as peer:
        for _ in range(4):
            line = await peer.reader.readuntil(b"\n")
            assert line == b'{"type":"ping"}\n'
            await peer.say(b'{"type":"pong"}\n')
        await peer.say(b'{"type":"goodbye"}\n')
        assert isinstance((await peer.hear_all())[-1], w.Goodbye)


async def test_random_frames_never_reach_anybody_else_and_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    chance = random.Random(7)
    valid = [
        HELLO,
        b'{"type":"send","id":1,"session":"s","content":"x"}\n',
        b'{"type":"subscribe","id":2,"session":"s","after":0}\n',
        b'{"type":"interrupt","id":3,"session":"s"}\n',
        b'{"type":"conversation","id":4,"session":"s"}\n',
        b'{"type":"list","id":5}\n',
        b'{"type":"fork","id":6,"session":"s"}\n',
        b'{"type":"unsubscribe","id":7,"subscription":2}\n',
    ]

    def mangled() -> bytes:
        frames = bytearray(b"".join(chance.choices(valid, k=chance.randrange(1, 6))))
        for _ in range(chance.randrange(0, 5)):
            at = chance.randrange(len(frames))
            match chance.randrange(3):
                case 0:
                    frames[at] = chance.randrange(256)
                case 1:
                    del frames[at : at + chance.randrange(1, 20)]
                case _:
                    frames[at:at] = bytes(chance.choices(b'{}[]",:\n\\\xff0e', k=3))
            if not frames:
                break
        return bytes(frames)

    async with wire(tmp_path) as on:

        async def attack() -> None:
            async with on.peer(authenticated=chance.random() < 0.7) as peer:
                with suppress(OSError):
                    await peer.say(mangled())
                    if chance.random() < 0.5:
                        peer.writer.write_eof()
                if chance.random() < 0.5:
                    peer.transport.abort()
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await peer.hear_all()

        await asyncio.gather(*(attack() for _ in range(50)))
        await until(lambda: on.service.statistics().connections == 1)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(6):
                await asyncio.gather(*(attack() for _ in range(50)))
            await until(lambda: on.service.statistics().connections == 1)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        print(f"300 mangled connections, {grown:,} bytes")
        statistics = on.service.statistics()
        assert (statistics.subscriptions, statistics.outgoing_bytes) == (0, 0)
        # What was said is in memory: some of it was taken.
        assert grown < 8_000_000
