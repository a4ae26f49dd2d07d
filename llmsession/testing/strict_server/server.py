"""The strict server: it accepts connections and sends the answers that its responder decides."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.lowlevel
import h11

from .connection import ClientGone, Wire, listening
from .model.faults import Break, End, Head, Pause, Send, Step
from .model.models import ModelRules
from .replies.received import Ended, Received
from .responder import Responder, Summaries
from .script import Faults, ServerScript

__all__ = ["StrictServer"]


class StrictServer:
    """A model provider on 127.0.0.1 that answers from *script* and refuses requests that the real
    API refuses. It implements the Messages API and chat completions.

    ``async with`` starts and stops the server, on asyncio and on trio. All delays use anyio, so
    they are virtual if the event loop's time is. Leaving the context closes all connections.

    - *script* is a list of replies, which answer the requests in order; a function from a request
      to its reply; or a mapping from conversations to one of these. With None, the server echoes
      the last message.
    - *faults* affect the answers to valid requests. They are a list with one item for each request
      in order (None for no fault), a function, or RandomFaults. If a fault kept a reply from its
      client, the next request gets the same reply.
    - *clock* returns the time in seconds for the expiry of cached prefixes.
    - *models* adds to the known models, or changes their rules.
    - *api_keys* are the accepted keys. By default every key is accepted.
    - *seed* decides the signatures of thinking.
    - *summaries* returns the text of the server's own summary of a conversation, for a request.
    - *keep* is for long runs: the contents of all requests but the last *keep* are discarded.
    """

    def __init__(
        self,
        script: ServerScript = None,
        *,
        faults: Faults = None,
        clock: Callable[[], float] | None = None,
        models: Mapping[str, ModelRules] | None = None,
        api_keys: Collection[str] | None = None,
        seed: int = 0,
        port: int = 0,
        summaries: Summaries | None = None,
        keep: int | None = None,
    ) -> None:
        self._desk = Responder(
            script,
            faults=faults,
            models=models,
            api_keys=api_keys,
            seed=seed,
            summaries=summaries,
            keep=keep,
        )
        self._clock = clock
        self._port = port
        self._listener: socket.socket | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._changed = anyio.Event()
        self.open_connections = 0
        """The number of open connections, including those without a request."""
        self.accepted_connections = 0

    async def __aenter__(self) -> Self:
        self._listener = listening(self._port)
        self._port = self._listener.getsockname()[1]
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._accept, self._listener)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        assert self._listener is not None
        self._tasks.cancel_scope.cancel()
        try:
            # An exception of the body is not passed to the group, which would wrap it in an
            # ExceptionGroup.
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._listener.close()

    @property
    def url(self) -> str:
        """The base URL for ``anthropic``. For ``openai`` append ``/v1``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> tuple[Received, ...]:
        """All received requests in order, with their results."""
        return tuple(self._desk.log)

    @property
    def closed_by_client(self) -> int:
        """How many answers the client cut off by closing its connection."""
        return sum(received.ended == "closed_by_client" for received in self._desk.log)

    @property
    def open_replies(self) -> int:
        """How many answers are being sent."""
        return sum(received.ended == "open" for received in self._desk.log)

    async def wait_for(self, condition: Callable[[StrictServer], bool]) -> None:
        """Wait until *condition* is true. It is evaluated after each change. Cancellable."""
        while not condition(self):
            self._changed = anyio.Event()
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()

    async def _accept(self, listener: socket.socket) -> None:
        assert self._tasks is not None
        while True:
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
                continue
            except OSError:  # the client closed the connection before it was accepted
                await anyio.lowlevel.checkpoint()
                continue
            self._tasks.start_soon(self._serve, Wire(accepted))

    async def _serve(self, wire: Wire) -> None:
        self.open_connections += 1
        self.accepted_connections += 1
        self._note_change()
        reset = False
        try:
            while True:
                ended, again = await self._answer_next(wire)
                reset = ended == "reset"
                if not again:
                    return
        finally:
            wire.close(reset=reset)
            self.open_connections -= 1
            self._note_change()

    async def _answer_next(self, wire: Wire) -> tuple[Ended, bool]:
        """How the answer ended, and whether another request may follow."""
        try:
            request = await wire.read_request()
        except h11.RemoteProtocolError:
            with suppress(ClientGone):
                await wire.refuse_garbage()
            return "whole", False
        except ClientGone:
            return "closed_by_client", False
        if request is None:
            return "whole", False
        clock = self._clock or anyio.current_time
        number, steps = self._desk.answer(request, clock())
        self._note_change()
        return await self._play_watched(wire, number, steps)

    async def _play_watched(
        self, wire: Wire, number: int, steps: Iterable[Step]
    ) -> tuple[Ended, bool]:
        """Play *steps*, but stop as soon as the client goes away."""
        ended: Ended = "closed_by_client"
        again = False
        async with anyio.create_task_group() as watch:
            watch.start_soon(_cancel_when_closed, wire, watch.cancel_scope)
            with suppress(ClientGone):
                ended, again = await _play(wire, steps)
                # Nothing waits in between: whoever has read the end finds it written down.
                self._finish(number, ended)
            watch.cancel_scope.cancel()
        if ended == "closed_by_client":
            self._finish(number, ended)
        return ended, again

    def _finish(self, number: int, ended: Ended) -> None:
        self._desk.finish(number, ended)
        self._note_change()


async def _cancel_when_closed(wire: Wire, scope: anyio.CancelScope) -> None:
    await wire.wait_closed_by_client()
    scope.cancel()


async def _play(wire: Wire, steps: Iterable[Step]) -> tuple[Ended, bool]:
    for step in steps:
        match step:
            case Head():
                await wire.send_head(step)
            case Send():
                await wire.send_body(step.body)
            case Pause(seconds=math.inf):
                await anyio.sleep_forever()
            case Pause():
                await anyio.sleep(step.seconds)
            case End():
                return "whole", await wire.end()
            case Break():
                return ("reset" if step.reset else "cut"), False
    raise AssertionError("an answer ends with End or Break")
