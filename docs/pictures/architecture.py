"""The picture of the parts: who calls whom, and where a session's state is."""

from __future__ import annotations

from .canvas import Canvas

__all__ = ["architecture"]


def architecture() -> str:
    """Programs and clients, the service, the actor of a session, and what it uses."""
    canvas = Canvas(
        820,
        404,
        "The parts of llmsession",
        "A program embeds a session manager, or clients reach it through the service over sockets "
        "or gRPC. The manager has one actor for each conversation. Commands wait in the actor's "
        "mailbox. The actor asks the turn machine what follows, appends records to the store, "
        "sends requests to a provider, runs tools, and has compactions planned. Each record is "
        "published to subscribers after it is durable.",
    )
    # Callers.
    canvas.box(20, 60, 150, 62, "your program", "embeds a manager", "asyncio or trio")
    canvas.box(20, 216, 150, 48, "clients", "Python, browsers, ...")
    canvas.box(20, 312, 150, 62, "service", "llmsession serve", "limits, tokens, TLS")
    canvas.arrow((95, 264), (95, 311), both_ways=True)
    canvas.text(103, 285, "sockets,", "soft", "start")
    canvas.text(103, 299, "gRPC", "soft", "start")
    # The manager, and one actor in it.
    canvas.rect(250, 24, 330, 356, "group")
    canvas.text(415, 46, "SessionManager, in one process", "head")
    canvas.rect(300, 66, 260, 262, "blue")
    canvas.rect(290, 74, 260, 262, "blue")
    canvas.rect(280, 82, 260, 262, "blue")
    canvas.text(410, 104, "one actor per conversation", "head blue")
    canvas.box(300, 118, 220, 44, "mailbox", "commands in order, bounded")
    canvas.box(
        300, 186, 220, 62, "actor", "owns the state; the turn machine", "decides what follows"
    )
    canvas.box(300, 284, 220, 44, "history", "immutable, grows by whole turns")
    canvas.arrow((410, 162), (410, 185))
    canvas.arrow((410, 248), (410, 283))
    canvas.text(418, 270, "commit", "soft", "start")
    canvas.text(415, 366, "sessions share no state", "soft")
    # Ways in, and the way back.
    canvas.arrow((170, 84), (238, 84), (238, 132), (299, 132), kind="blue")
    canvas.text(176, 78, "commands", "blue small", "start")
    canvas.arrow((170, 352), (238, 352), (238, 148), (299, 148), kind="blue")
    canvas.arrow((299, 232), (208, 232), (208, 108), (171, 108), kind="green")
    canvas.arrow((208, 232), (208, 334), (171, 334), kind="green")
    canvas.text(202, 206, "events", "green small", "end")
    # What the actor uses.
    canvas.box(640, 40, 160, 62, "provider", "Anthropic, OpenAI,", "compatible, recorded")
    canvas.box(640, 132, 160, 62, "tools", "your functions, in", "tasks and threads")
    canvas.box(640, 224, 160, 62, "store", "append-only log:", "SQLite, PostgreSQL", kind="green")
    canvas.box(640, 316, 160, 62, "compaction", "what the model is sent;", "planned in background")
    canvas.arrow((520, 196), (604, 196), (604, 71), (639, 71))
    canvas.arrow((520, 208), (616, 208), (616, 163), (639, 163))
    canvas.arrow((520, 226), (604, 226), (604, 255), (639, 255), kind="green")
    canvas.arrow((520, 240), (592, 240), (592, 347), (639, 347))
    return canvas.svg()
