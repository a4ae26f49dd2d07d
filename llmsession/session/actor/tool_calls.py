"""The tool calls of a step: who runs each call, its deadline, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from llmsession.compaction.recall import RECALL_TOOL_NAME, recall, recall_chars
from llmsession.errors import contained_in_work, error_text
from llmsession.turns import events as e
from llmsession.turns import records as r
from llmsession.turns.blocks import ToolUseBlock, parse_blocks
from llmsession.turns.event_choice import event_for_answers
from llmsession.turns.machine import ENDED, Phase, tag_of
from llmsession.turns.receipts import brief_input, settled_answer
from llmsession.turns.request import StepTag

from ..core.core import Core, Report
from ..core.turn_run import Run
from ..values.config import Tool, ToolResult
from .tool_runner import make_answer, make_error, prepare_answers, run_callable, running_tool
from .turn_works import RunWorks

__all__ = ["Toolbox", "is_pure"]


def is_pure(call: r.PendingCall) -> bool:
    """Is *call* a call of the recall tool? That tool only reads the history, so it may run
    twice.
    """
    return call.runner == "session" and call.name == RECALL_TOOL_NAME


class Toolbox:
    """Runs the pending calls of one session. ``feed`` gives an event to a run's turn."""

    def __init__(self, core: Core, works: RunWorks, feed: Callable[[Run, e.Event], None]) -> None:
        self._core = core
        self._works = works
        self._feed = feed

    def pending_call(self, call: ToolUseBlock) -> r.PendingCall:
        """*call* with its runner: the session if the tool has a function, else the caller."""
        tool = self._core.config.bound_tools.get(call.name)
        ours = call.name == RECALL_TOOL_NAME or (tool is not None and tool.run is not None)
        brief = brief_input(msgspec.json.encode(call.input)) if call.input else ""
        return r.PendingCall(call.id, call.name, "session" if ours else "caller", brief)

    def start(self, run: Run, tag: StepTag) -> None:
        """Run the calls of the session's own tools, and start the deadline of every open call.

        Calls that the caller runs were published when they became durable.
        """
        config = self._core.config
        # Only the calls of this step, because the turn may have made thousands of calls before.
        step_calls = self._core.state.open[run.number].calls
        tracks = [run.calls[call.id] for call in step_calls if call.id in run.turn.open_calls]
        inputs = self._inputs(run)
        for track in tracks:
            call = track.call
            track.status = "started"
            if is_pure(call):
                self._recall(run, tag, call, inputs.get(call.id))
                continue
            tool = config.bound_tools.get(call.name)
            if call.runner == "session" and tool is not None:
                self._run_tool(run, tag, tool, call, inputs.get(call.id))
            deadline_s = config.tool_deadline_s
            if tool is not None and tool.deadline_s is not None:
                deadline_s = tool.deadline_s
            if deadline_s is not None:
                self._works.after(run, call.id, deadline_s, partial(self._expired, run, call.id))
        self._core.log.event("tools.started", run.turn, calls=len(tracks))

    def _inputs(self, run: Run) -> dict[str, Any]:
        """The inputs of the newest step's calls, by call id."""
        staged = self._core.state.open[run.number].staged
        # Parsed here, because a message keeps what is read of it by its ``tool_calls``.
        blocks = parse_blocks(staged[-1].body) if staged else ()
        return {block.id: block.input for block in blocks if isinstance(block, ToolUseBlock)}

    def _recall(self, run: Run, tag: StepTag, call: r.PendingCall, arguments: Any) -> None:
        core = self._core
        max_chars = recall_chars(core.budget_tokens, core.builder.profile.chars_per_token)
        text, is_error = recall(core.state.messages_of_call, arguments, max_chars=max_chars)
        result = ToolResult(call.id, text, is_error=is_error)
        answer = make_answer(result, compaction=self._core.capping)
        self._core.report(partial(self._tool_ended, run, tag, answer))

    def _run_tool(
        self, run: Run, tag: StepTag, tool: Tool, call: r.PendingCall, call_input: Any
    ) -> None:
        core = self._core

        async def work() -> Report:
            try:
                if not core.services.lease.is_valid:
                    await core.services.lease.wait()
                threads = core.services.tool_threads
                with running_tool(core.session, tool.name):
                    output = await run_callable(tool, call_input, threads=threads, name=name)
                result = ToolResult(
                    call.id, output.content, output.is_error, output.compact_summary
                )
                answers = await prepare_answers((result,), compaction=core.capping)
            except BaseException as error:  # a tool may return anything; the model gets the error
                answers = (make_error(call.id, error_text(contained_in_work(error))),)
            return partial(self._tool_ended, run, tag, answers[0])

        name = f"tool {tool.name} {call.id} in {core.session}"
        run.calls[call.id].work = self._works.start(run, name, work)

    def _tool_ended(self, run: Run, tag: StepTag, answer: r.Answer) -> None:
        ended = run.turn.phase in ENDED or tag != tag_of(run.turn)
        if ended or answer.call_id not in run.turn.open_calls:
            self._core.late_reports += 1
            return
        self.answer(run, (answer,), tag)

    def answer(self, run: Run, answers: tuple[r.Answer, ...], tag: StepTag | None = None) -> None:
        """Accept results of calls that are open; the caller of this method has checked that."""
        for answer in answers:
            run.calls[answer.call_id].status = "failed" if answer.is_error else "finished"
            timer = run.timers.pop(answer.call_id, None)
            if timer is not None:
                timer.cancel()
        run.answers.extend(answers)
        self._feed(run, event_for_answers(run.turn, tuple(a.call_id for a in answers), tag))

    def _expired(self, run: Run, call_id: str) -> None:
        if run.turn.phase is not Phase.TOOLS or call_id not in run.turn.open_calls:
            return
        self._core.log.trouble("tool.expired", run.turn, call=call_id)
        track = run.calls[call_id]
        if track.work is not None:
            self._works.cancel(run, track.work)
        self.answer(run, (settled_answer(call_id, "deadline"),))
        # The tool itself gave no result, so its receipt must not say finished or failed.
        track.status = "started"
