"""Random lives of a context: it grows, turns are dropped, the past is cut, and a policy keeps it
inside its budget. What a session does around its compactions, without a session.

Every life is a function of its seed. Nothing in it was recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from llmsession.compaction.planning.policy import Budget, Policy, is_worthwhile
from llmsession.compaction.planning.prefix_summaries import extracted_summary, with_summary
from llmsession.compaction.policies import Balanced
from llmsession.compaction.recall import RECALL_TOOL
from llmsession.compaction.view.plan import Plan, plan_of, record_of
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View
from llmsession.session.core.request_builder import Built, ContextBuilder
from llmsession.testing.checker.requests import extends
from llmsession.turns.blocks import encode_blocks, encode_json
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id
from llmsession.turns.records import Trigger
from llmsession.turns.request import Frame, Profile, Request, sizes_for

__all__ = ["ContextLife"]

_BASH = msgspec.Raw(
    encode_json({"name": "bash", "description": "", "input_schema": {"type": "object"}})
)
_WORDS = ["the", "parser", "returns", "a", "wrong", "offset", "when", "lines", "are", "empty", "so"]
_PIECES = (
    "2024-11-05 12:00:01 ERROR a.py:42 failed: connection refused\n",
    "    return self._parse(line, offset=offset + 1)  # noqa\n",
    "7f3a9c0e1b5d2468ace0",
    "漢字仮名交じり文の長い段落。",
    'she said "\\n\\t{}" and \x01\x02\x1b[0m\u2028 left\n',
    "🎉🙂",
    "          \n\n\n",
    "https://example.org/a/b?c=d 3 passed, 1 failed, exit code 2\n",
)


class ContextLife:
    """One conversation and its view. ``seen`` counts how deep it went."""

    def __init__(
        self, seed: int, profile: Profile, window_tokens: int, policy: Policy | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.profile = profile
        self.policy = policy or Balanced()
        self.limit = sizes_for(window_tokens, None, profile).budget_tokens
        self.frame = Frame(
            model="m", max_tokens=1000, system="be brief " * 20, tools=(_BASH, RECALL_TOOL)
        )
        self.builder = ContextBuilder(profile, self.frame)
        self.history: tuple[Message, ...] = ()
        self.staged: tuple[Message, ...] = ()
        self.view = View()
        self.summaries: dict[str, str] = {}
        self.turn = 0
        self.calls = 0
        self.seen: Counter[str] = Counter()
        self.strict = False
        """Must every request fit?"""
        self._last: tuple[Request, View, tuple[Message, ...]] | None = None
        # About what fills the window in thirty steps.
        self._usual_chars = max(200, int(self.limit * profile.chars_per_token) // 30)

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.history + self.staged

    # What is said.

    def _text(self, most: int) -> str:
        rng = self.rng
        size = rng.choice((most // 20, most // 4, most, most // 2))
        kind = rng.random()
        if kind < 0.5:
            words = " ".join(rng.choices(_WORDS, k=min(size // 5 + 1, 2_000)))
            return (words + "\n") * max(1, size // (len(words) + 1))
        piece = rng.choice(_PIECES)
        return f"{rng.randrange(10**6)} " + piece * max(1, size // len(piece))

    def _result(self, call_id: str) -> dict[str, Any]:
        rng = self.rng
        content: Any = self._text(self._usual_chars * 2)
        kind = rng.random()
        if kind < 0.1:
            content = rng.choice(("", " ", "ok", []))
        elif kind < 0.25:
            content = [{"type": "text", "text": content}]
            if rng.random() < 0.5 and self.limit > 12_000:
                content.insert(rng.randrange(2), _image())
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        return {**block, "is_error": True} if rng.random() < 0.1 and content else block

    def _add(self, role: Role, blocks: list[dict[str, Any]]) -> None:
        owner: Any = "u" if role == "user" else "a"
        name = message_id("s", TurnId(owner, self.turn), len(self.staged))
        message = Message(
            id=name, session="s", turn=self.turn, role=role, body=encode_blocks(blocks)
        )
        self.staged += (message,)

    def _ask(self) -> None:
        rng = self.rng
        self.turn += 1
        text = self._text(400)
        if rng.random() < 0.04:
            chars = int(self.limit * self.profile.chars_per_token) * 3
            # Four bytes a character still fit into a message, with an image.
            text = self._text(min(chars, 8_000_000))
            self.seen["huge message"] += 1
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if rng.random() < 0.1 and self.limit > 12_000:
            blocks.append(_image())
        self._add("user", blocks)

    def _think(self) -> list[dict[str, Any]]:
        opens = self.profile.thinking_opens_tool_loop
        if opens or self.rng.random() < 0.4:
            thought = self.rng.choice(("", self._text(200)))
            kind = {"type": "thinking", "thinking": thought}
            return [{**kind, "signature": f"sig{self.rng.randrange(10**9)}"}]
        return []

    def _step(self) -> None:
        """The model calls tools, and they answer; perhaps the user says something beside."""
        rng = self.rng
        blocks, results = self._think(), []
        if rng.random() < 0.5:
            blocks.append({"type": "text", "text": self._text(300)})
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            self.calls += 1
            call_id = f"c{self.calls}"
            given: dict[str, Any] = {"cmd": self._text(100)}
            if rng.random() < 0.3:
                given["edits"] = [{"path": "a.py", "new": self._text(self._usual_chars)}]
            blocks.append({"type": "tool_use", "id": call_id, "name": "bash", "input": given})
            results.append(self._result(call_id))
            if rng.random() < 0.6:
                self.summaries[call_id] = self._text(200)
        self._add("assistant", blocks)
        if rng.random() < 0.1:
            results.append({"type": "text", "text": self._text(100)})
        self._add("user", results)

    # What happens.

    def live(self, events: int) -> Counter[str]:
        """So many random events; checks everything on the way."""
        for _ in range(events):
            self._event()
        return self.seen

    def replay(self, messages: Sequence[Message]) -> Counter[str]:
        """What was said before, message by message: a request wherever a reply followed."""
        for message, following in pairwise([*messages, None]):
            if message is None:
                break
            if self.staged and self.staged[-1].turn != message.turn:
                self.history, self.staged = self.messages, ()
            self.staged += (message,)
            if message.is_user and following is not None and following.is_assistant:
                self._request()
        return self.seen

    def _event(self) -> None:
        rng = self.rng
        if not self.staged:
            change = rng.random()
            if change < 0.02:
                self._clear()
            elif change < 0.07 and self.history:
                self._rewind()
            elif change < 0.10 and self.history:
                self._forget()
            elif change < 0.13:
                self._show(self.view.voided(len(self.history)))
            self._ask()
        elif rng.random() < 0.75:
            self._step()
        elif rng.random() < 0.15:
            self.seen["aborted"] += 1
            self.staged = ()
            self._show(self.view.clamped(len(self.history)))
            return
        else:
            self._add("assistant", [*self._think(), {"type": "text", "text": self._text(300)}])
            self.history, self.staged = self.messages, ()
            self.seen["committed"] += 1
            return
        self._request()

    def _clear(self) -> None:
        self.seen["cleared"] += 1
        self.history = ()
        self._show(View(version=self.view.version + 1))

    def _rewind(self) -> None:
        turns = list(dict.fromkeys(message.turn for message in self.history))
        to = self.rng.choice(turns[-12:])
        before = self.view
        self.history = tuple(m for m in self.history if m.turn <= to)
        self._show(self.view.clamped(len(self.history)))
        self.seen["rewound"] += 1
        self.seen["rewound into a prefix summary"] += (
            len(before.prefix_summaries) > len(self.view.prefix_summaries) > 0
        )

    def _forget(self) -> None:
        turns = list(dict.fromkeys(message.turn for message in self.history))
        before = self.rng.choice(turns)
        kept = tuple(m for m in self.history if m.turn >= before)
        gone = self.history[: len(self.history) - len(kept)]
        calls = {call.id for message in gone for call in message.tool_calls}
        self.seen["forgot a prefix summary"] += bool(self.view.prefix_summaries)
        self.history = kept
        self._show(self.view.without_head(len(gone), len(kept), calls))
        assert not self.view.prefix_summaries
        assert not calls & self.view.shown_results.keys()

    def _show(self, view: View) -> None:
        """The view is another one, by something that is in the log."""
        self.view = view
        self._last = None

    # What is sent.

    def _request(self) -> None:
        built = self._build()
        if self.policy.due(built.tokens, self.limit):
            self._compact("threshold", built)
            built = self._build()
        for number in range(12):
            if built.tokens <= self.limit:
                break
            self.seen["did not fit"] += 1
            if not self._compact("window", built):
                self._too_large(built)
                return
            assert number < 11, "forced plans go on for ever"
            built = self._build()
        self._sent(built)

    def _too_large(self, built: Built) -> None:
        """The end of the ladder: the turn is dropped, the session goes on."""
        self.seen["too large"] += 1
        assert not self.strict, built.size
        self.staged = ()
        self._show(self.view.clamped(len(self.history)))

    def _build(self) -> Built:
        messages, view = self.messages, self.view
        built = self.builder.build(messages, view)
        self.seen["built"] += 1
        if len(messages) < 100 or self.seen["built"] % 20 == 0:
            again = project(messages, view, self.profile, self.frame)
            assert again.encode() == built.request.encode()
        assert built.violations == (), built.violations
        if self._last is not None:
            earlier, seen_view, seen = self._last
            assert view is seen_view
            assert all(a is b for a, b in zip(seen, messages, strict=False))
            assert extends(earlier, built.request)
        self._last = (built.request, view, messages)
        return built

    def _sent(self, built: Built) -> None:
        assert built.tokens <= self.limit
        self.seen["requests"] += 1

    def budget(self, built: Built, trigger: Trigger) -> Budget:
        return Budget(
            used_tokens=built.tokens,
            limit_tokens=self.limit,
            summaries=self.summaries,
            profile=self.profile,
            committed=len(self.history),
            frame_tokens=self.builder.frame_tokens,
            trigger=trigger,
        )

    def _compact(self, trigger: Trigger, built: Built) -> bool:
        plan = self._filled(self.policy, trigger, built)
        if trigger == "window" and not (plan and is_worthwhile(plan, 0.0)):
            hard = Balanced(keep_recent_turns=1, keep_recent_steps=2)
            plan = self._filled(hard, trigger, built)
        if plan is None or not is_worthwhile(plan, 0.0):
            return False
        self._apply(plan)
        if trigger == "threshold":
            self._finds_nothing_again(plan)
        return True

    def _filled(self, policy: Policy, trigger: Trigger, built: Built) -> Plan | None:
        budget, messages = self.budget(built, trigger), self.messages
        plan = policy.plan(self.view, messages, budget)
        assert plan == policy.plan(self.view, messages, budget)
        if plan is None or plan.summary_request is None:
            return plan
        summary_request = plan.summary_request
        assert summary_request.first == self.view.start < summary_request.upto < len(messages)
        prefix_summary = extracted_summary(summary_request, messages, self.profile)
        return with_summary(plan, prefix_summary, self.view, messages, budget)

    def _apply(self, plan: Plan) -> None:
        assert plan_of(record_of(plan)) == plan
        before, messages = self.view, self.messages
        after = before.applied(plan, len(messages))
        assert after.compacted_before >= before.compacted_before
        assert after.shown_results.items() >= before.shown_results.items()
        assert after.inputs.items() >= before.inputs.items()
        assert after.texts.items() >= before.texts.items()
        assert after.prefix_summaries[: len(before.prefix_summaries)] == before.prefix_summaries
        self.seen["plans"] += 1
        self.seen["prefix_summaries"] += plan.prefix_summary is not None
        self.seen["second summaries"] += (
            len(after.prefix_summaries) == 2 and plan.prefix_summary is not None
        )
        self.seen["third summaries"] += (
            len(after.prefix_summaries) >= 3 and plan.prefix_summary is not None
        )
        self.seen["results swapped"] += len(plan.shown_results)
        self.seen["inputs shortened"] += len(plan.inputs)
        self.seen["texts cut"] += len(plan.texts)
        self._show(after)

    def _finds_nothing_again(self, first: Plan) -> None:
        """What was just compacted is not compacted again for nothing (G3, G11)."""
        built = self._build()
        again = self._filled(self.policy, "threshold", built)
        if again is not None:
            self.seen["found more"] += 1
            gain = again.tokens_before - again.tokens_after
            self.seen["found more than 5 %"] += gain * 20 > again.tokens_before


def _image() -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 400}
    return {"type": "image", "source": source}
