"""The picture of an interrupt: which turns it ends, who wins, and what becomes of a tool."""

from __future__ import annotations

from .canvas import Canvas

__all__ = ["interrupt"]


def interrupt() -> str:
    """Three bands: the order of commands, the decision point, the grace of a tool."""
    canvas = Canvas(
        820,
        520,
        "What happens on an interrupt",
        "First: an interrupt ends every send that was enqueued before it, the running turn, the "
        "queued ones and those not read yet, and none that was enqueued after it. Second: before "
        "the decision point the interrupt wins and the turn is dropped whole; after it the answer "
        "is TOO_LATE and the turn commits. Third: a tool that ignores its cancellation holds the "
        "interrupt for the grace of 100 ms only; its late result is dropped, and the next message "
        "tells the model that the outcome of the call is unknown.",
    )
    _order(canvas)
    _decision(canvas)
    _tool(canvas)
    return canvas.svg()


def _order(canvas: Canvas) -> None:
    canvas.text(20, 30, "1. It ends what was sent before it, and nothing after", "head", "start")
    commands = [
        (20, "send 7", "runs", "orange"),
        (160, "send 8", "queued", "orange"),
        (300, "send 9", "not read yet", "orange"),
        (440, "interrupt 10", "takes the next number", "box"),
        (640, "send 11", "runs next", "green"),
    ]
    for x, name, state, kind in commands:
        canvas.box(x, 46, 180 if name.startswith("i") else 120, 46, name, state, kind=kind)
    canvas.line((20, 100), (20, 108), (420, 108), (420, 100), kind="orange")
    canvas.text(220, 124, "aborted, each with its own outcome", "orange small")
    canvas.text(700, 124, "not touched", "green small")
    canvas.arrow((20, 140), (800, 140))
    canvas.text(800, 156, "order in which they were enqueued", "soft", "end")


def _decision(canvas: Canvas) -> None:
    canvas.text(20, 194, "2. One decision point: no third outcome", "head", "start")
    canvas.box(20, 208, 420, 34, "the turn's work: requests, replies, tools", kind="blue")
    canvas.box(440, 208, 240, 34, "turn.committed is written", kind="green")
    canvas.line((440, 200), (440, 316), kind="orange", dashed=True)
    canvas.arrow((230, 266), (230, 244), kind="orange")
    canvas.text(230, 282, "interrupt before: it wins, ABORTED", "orange small head")
    canvas.text(230, 298, "The turn is dropped whole. The history is", "soft")
    canvas.text(230, 313, "the same object as before the turn.", "soft")
    canvas.arrow((560, 266), (560, 244), kind="green")
    canvas.text(560, 282, "interrupt after: TOO_LATE", "green small head")
    canvas.text(560, 298, "The turn commits,", "soft")
    canvas.text(560, 313, "with all its messages.", "soft")


def _tool(canvas: Canvas) -> None:
    canvas.text(
        20, 356, "3. A tool that ignores its cancellation holds nothing up", "head", "start"
    )
    canvas.box(20, 372, 210, 34, "a tool runs", kind="blue")
    canvas.box(230, 372, 130, 34, "grace: 100 ms", kind="orange")
    canvas.rect(360, 372, 240, 34, "group")
    canvas.text(480, 393, "it may run on, and is named", "soft")
    canvas.arrow((230, 432), (230, 408), kind="orange")
    canvas.text(230, 448, "interrupt:", "orange small head")
    canvas.text(230, 464, "the tool is cancelled", "soft")
    canvas.arrow((360, 432), (360, 408), kind="orange")
    canvas.text(366, 448, "turn.aborted is durable,", "orange small head", "start")
    canvas.text(366, 464, "interrupt() returns", "soft", "start")
    canvas.arrow((600, 432), (600, 408))
    canvas.text(606, 448, "its late result", "small head", "start")
    canvas.text(606, 464, "is dropped", "soft", "start")
    canvas.text(
        20, 498, "The next message tells the model which calls of the dropped turn finished, "
        "failed, or have an unknown outcome.", "soft", "start",
    )  # fmt: skip
