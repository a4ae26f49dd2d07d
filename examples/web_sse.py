"""A web application that streams replies to a browser by server-sent events, with Starlette.

    pip install starlette uvicorn
    uvicorn --factory examples.web_sse:application     # then open http://127.0.0.1:8000

It runs offline, with scripted replies. A browser that loses its connection reconnects with the id
of the last event that it received. The id is a cursor in the session's log, so the browser misses
no durable event. Closing the page does not interrupt a turn. The button does.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from llmsession import (
    LLMSession,
    Provider,
    SessionConfig,
    SessionError,
    SessionManager,
    SessionNotFound,
    StepRestarted,
    Store,
    TextDelta,
    records,
)
from llmsession.errors import InvalidInput, Refused
from llmsession.testing.scripted import ScriptedProvider, say

CONFIG = SessionConfig(model="scripted-model")
PAGE = """<!doctype html><title>llmsession</title>
<pre id=said></pre><form id=ask><input name=text autofocus> <button>send</button></form>
<button id=stop>interrupt</button><script>
const id = location.hash.slice(1) || crypto.randomUUID(); location.hash = id
const post = (path, body) => fetch(`/sessions/${id}/${path}`, {method: "POST", body})
const show = text => document.getElementById("said").append(text)
let step = []  // the pieces of text of the step that runs
document.getElementById("ask").onsubmit = event => {
  event.preventDefault(); show("\\n> " + event.target.text.value + "\\n")
  post("turns", JSON.stringify({text: event.target.text.value, command_id: crypto.randomUUID()}))
  event.target.reset()
}
document.getElementById("stop").onclick = () => post("interrupt")
const events = new EventSource(`/sessions/${id}/events`)
events.addEventListener("text", event => {
  step.push(new Text(JSON.parse(event.data).text)); show(step.at(-1))
})
events.addEventListener("turn.aborted", () => show("\\n(interrupted)\\n"))
const ends = ["tools.requested", "step.completed", "turn.committed", "turn.aborted", "turn.failed"]
ends.forEach(end => events.addEventListener(end, () => { step = [] }))
// A broken stream, or a new connection: the step's text comes again from its beginning.
events.onopen = () => step.splice(0).forEach(piece => piece.remove())
events.addEventListener("restarted", events.onopen)
</script>"""


async def page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def the_session(request: Request) -> LLMSession:
    """The session that the path names. It is created at its first use."""
    manager: SessionManager = request.app.state.manager
    try:
        return await manager.open(request.path_params["id"])
    except SessionNotFound:
        return await manager.create(
            CONFIG, session_id=request.path_params["id"], command_id="created-by-the-web"
        )


async def send(request: Request) -> Response:
    """Answers when the turn is durable. A repeat with the same command_id does nothing."""
    session, asked = await the_session(request), json.loads(await request.body())
    turn = await session.send(asked["text"], command_id=asked.get("command_id"))
    return JSONResponse({"turn": turn.id.number}, status_code=202)


async def interrupt(request: Request) -> Response:
    outcome = await (await the_session(request)).interrupt()
    return JSONResponse({"result": outcome.result})


async def events(request: Request) -> Response:
    session = await the_session(request)
    seen = request.headers.get("last-event-id", "0")
    after = int(seen) if seen.isdecimal() else 0
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        stream(session, after), media_type="text/event-stream", headers=headers
    )


async def stream(session: LLMSession, after: int) -> AsyncIterator[str]:
    """The session's events after the cursor *after*. Only durable events have an id. A browser that
    reconnects gets the events that follow the last id it received."""
    subscription = session.subscribe(after=after)
    try:
        async for event in subscription:
            if isinstance(event, TextDelta):
                yield written("text", {"turn": event.turn, "text": event.text})
            elif isinstance(event, StepRestarted):  # discard this step's text so far
                yield written("restarted", {"turn": event.turn})
            elif isinstance(event, records.RecordBase):
                kind = str(event.__struct_config__.tag)
                yield written(kind, {"turn": getattr(event, "turn", None)}, event.seq)
    finally:
        subscription.close()


def written(kind: str, fields: Mapping[str, Any], seq: int | None = None) -> str:
    numbered = f"id: {seq}\n" if seq is not None else ""
    return f"{numbered}event: {kind}\ndata: {json.dumps(fields)}\n\n"


async def refused(request: Request, error: Exception) -> Response:
    """An error as an HTTP response: 400 for invalid input, 409 for a command that is refused in
    the session's current state, and 503 for everything else."""
    status = 400 if isinstance(error, InvalidInput) else 409 if isinstance(error, Refused) else 503
    return JSONResponse({"error": type(error).__name__, "told": str(error)}, status_code=status)


def application(provider: Provider | None = None, store: Store | None = None) -> Starlette:
    """The application. Its sessions are in memory unless *store* is passed."""
    answers = provider or ScriptedProvider(
        lambda request, tag: say("This is a script, and no model. ").slow(0.05, delta_chars=4)
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with SessionManager(provider=answers, store=store) as manager:
            app.state.manager = manager
            yield

    return Starlette(
        routes=[
            Route("/", page),
            Route("/sessions/{id}/turns", send, methods=["POST"]),
            Route("/sessions/{id}/interrupt", interrupt, methods=["POST"]),
            Route("/sessions/{id}/events", events),
        ],
        exception_handlers={SessionError: refused},
        lifespan=lifespan,
    )
