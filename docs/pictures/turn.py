"""The picture of a turn's life. It is drawn by hand, and checked against the turn table."""

from __future__ import annotations

from llmsession.turns.machine import ENDED, TRANSITIONS, Phase

from .canvas import Canvas

__all__ = ["DRAWN", "NAMED", "turn", "ways"]

P = Phase
RUNNING = (P.BUILDING, P.STREAMING, P.JOURNALING, P.TOOLS)
ASKING = (P.BUILDING, P.STREAMING)
DRAWN = {
    (P.ACCEPTED, P.BUILDING),
    (P.ACCEPTED, P.ABORTING),
    (P.BUILDING, P.STREAMING),
    (P.STREAMING, P.BUILDING),
    (P.STREAMING, P.JOURNALING),
    (P.JOURNALING, P.BUILDING),
    (P.JOURNALING, P.TOOLS),
    (P.TOOLS, P.JOURNALING),
    *((phase, P.STOPPING) for phase in RUNNING),
    *((phase, end) for phase in ASKING for end in (P.COMMITTING, P.FAILING)),
    *((P.STOPPING, end) for end in (P.ABORTING, P.COMMITTING, P.FAILING)),
    (P.ABORTING, P.ABORTED),
    (P.COMMITTING, P.COMMITTED),
    (P.FAILING, P.FAILED),
}
"""Ways that have an arrow. A frame around phases stands for each of them."""
NAMED = {
    # After a crash a turn goes on where its log ends.
    *((P.ACCEPTED, phase) for phase in (P.TOOLS, P.JOURNALING, P.STOPPING)),
    # Another owner has the session, or the store failed.
    *((phase, end) for phase in P if phase not in ENDED for end in (P.FENCED, P.LOST)),
}
"""Ways that are written in a line of text, without an arrow."""
RECOVERY = (
    "After a crash a turn goes on where its log ends: at a request, a record, a tool, a limit."
)
OTHER_ENDS = (
    "Any phase can become FENCED (another owner has the session) or LOST (the store failed)."
)


def ways() -> set[tuple[Phase, Phase]]:
    """Each change of phase that the turn table allows."""
    return {
        (phase, following)
        for phase, cells in TRANSITIONS.items()
        for following in cells.values()
        if following is not phase
    }


def turn() -> str:
    """The phases of a turn, from its acceptance to its end."""
    canvas = Canvas(
        820,
        512,
        "The life of a turn",
        "An accepted turn builds a request, streams the reply, makes the step durable, runs its "
        "tools, and builds the next request, until a reply ends it. An interrupt or a limit stops "
        "the running work and then drops or keeps the turn. At the decision point a turn begins "
        "to commit, to abort or to fail. After it an interrupt is too late. Each way has one end: "
        "COMMITTED, ABORTED or FAILED.",
    )
    _work(canvas)
    _ends(canvas)
    canvas.text(20, 482, RECOVERY, "soft", "start")
    canvas.text(20, 499, OTHER_ENDS, "soft", "start")
    return canvas.svg()


def _work(canvas: Canvas) -> None:
    """The phases in which work runs."""
    canvas.rect(190, 42, 610, 156, "group")
    canvas.text(790, 62, "work runs: an interrupt wins", "soft", "end")
    canvas.rect(206, 76, 276, 108, "group")
    canvas.box(20, 102, 110, 44, "ACCEPTED", "durable, queued", kind="blue")
    canvas.box(220, 102, 100, 44, "BUILDING", "the request", kind="blue")
    canvas.box(366, 102, 104, 44, "STREAMING", "the reply", kind="blue")
    canvas.box(546, 102, 116, 44, "JOURNALING", "makes it durable", kind="blue")
    canvas.box(716, 102, 74, 44, "TOOLS", "run", kind="blue")
    canvas.arrow((130, 124), (219, 124))
    canvas.text(160, 118, "its turn", "soft")
    canvas.arrow((320, 118), (365, 118))
    canvas.arrow((392, 146), (392, 166), (270, 166), (270, 147))
    canvas.text(331, 179, "stream broke: again", "soft")
    canvas.arrow((470, 124), (545, 124))
    canvas.text(515, 118, "calls", "soft")
    canvas.arrow((662, 116), (715, 116))
    canvas.arrow((716, 134), (663, 134))
    canvas.text(689, 110, "calls", "soft")
    canvas.text(689, 150, "results", "soft")
    canvas.arrow((604, 102), (604, 66), (290, 66), (290, 101))
    canvas.text(447, 60, "the next step", "soft")


def _ends(canvas: Canvas) -> None:
    """What stops the work, and what ends the turn."""
    canvas.box(190, 242, 176, 44, "STOPPING", "cancels; waits for the grace", kind="orange")
    canvas.arrow((278, 198), (278, 241), kind="orange")
    canvas.text(270, 224, "interrupt, limit", "orange small", "end")
    canvas.line((20, 326), (800, 326), kind="orange", dashed=True)
    canvas.text(492, 318, "the decision point", "orange head", "start")
    canvas.text(492, 343, "from here on an", "orange small", "start")
    canvas.text(492, 358, "interrupt is TOO_LATE", "orange small", "start")
    canvas.box(20, 360, 130, 44, "ABORTING", "writes turn.aborted")
    canvas.box(330, 360, 146, 44, "COMMITTING", "writes turn.committed")
    canvas.box(640, 360, 130, 44, "FAILING", "writes turn.failed")
    canvas.arrow((60, 146), (60, 359), kind="orange")
    canvas.text(68, 224, "interrupt", "orange small", "start")
    canvas.arrow((200, 286), (120, 359), kind="orange")
    canvas.text(148, 306, "drop", "orange small", "end")
    canvas.arrow((300, 286), (356, 359), kind="orange")
    canvas.text(306, 316, "keep", "orange small", "end")
    canvas.arrow((366, 264), (668, 264), (668, 359), kind="orange")
    canvas.text(660, 258, "limit, nothing to keep", "orange small", "end")
    canvas.arrow((430, 184), (430, 359), kind="green")
    canvas.text(438, 224, "the reply ends the turn,", "green small", "start")
    canvas.text(438, 239, "or steps are kept", "green small", "start")
    canvas.arrow((460, 184), (460, 206), (720, 206), (720, 359))
    canvas.text(728, 224, "refused,", "soft", "start")
    canvas.text(728, 239, "given up,", "soft", "start")
    canvas.text(728, 254, "too large", "soft", "start")
    canvas.box(20, 428, 130, 30, "ABORTED", kind="orange")
    canvas.box(330, 428, 146, 30, "COMMITTED", kind="green")
    canvas.box(640, 428, 130, 30, "FAILED")
    for x in (85, 403, 705):
        canvas.arrow((x, 404), (x, 427))
