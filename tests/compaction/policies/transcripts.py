"""Random conversations as agents have them, for the contract of the policies.

A conversation is drawn as a few numbers, one for each turn, and told by a seeded generator: so
that drawing is cheap, and shrinking leaves out whole turns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from hypothesis import strategies as st

from llmsession.compaction.summaries.cap import cap_content
from llmsession.turns.blocks import encode_blocks
from llmsession.turns.ids import TurnId
from llmsession.turns.messages import Message, Role, message_id
from llmsession.turns.request import Frame, Profile
from tests.compaction.conversations import image, result_block, text

Kind: TypeAlias = Literal["bound", "free", "manual"]

PROFILES: Mapping[Kind, Profile] = {
    "bound": Profile(),
    "free": Profile(name="compatible", binds_thinking=False),
    "manual": Profile(thinking_opens_tool_loop=True),
}
"""Thinking that is signed and bound; none that is; and the one that has to open a tool loop."""

_THINKS: dict[str, Any] = {"thinking": {"type": "enabled", "budget_tokens": 1024}}

_TOOLS = tuple(
    msgspec.Raw(msgspec.json.encode({"name": name, "input_schema": {"type": "object"}}))
    for name in ("read_file", "write_to_file", "bash", "search", "skill")
)

PATHS = ("src/a.py", "src/b.py", "./src/a.py", "README.md")
_SIZES = (0, 12, 90, 400, 1_500, 6_000)
_GAPS_S = (0.0, 5.0, 600.0, 40_000.0, 500_000.0)


_LINES = ("x", "a line of it, and of it, and so on\n", "src/a.py:12: error 7\n")


def _of(rng: random.Random, chars: int) -> str:
    """About *chars* characters of text, up to a line less."""
    line = rng.choice(_LINES)
    return line * (chars // len(line))


class Stop(NamedTuple):
    """A moment when a plan may be asked for: after so many messages, so many of them committed."""

    at: int
    committed: int


class Talked(NamedTuple):
    """A conversation, the moments at which a request is made in it, and what it is sent to."""

    messages: tuple[Message, ...]
    stops: tuple[Stop, ...]
    summaries: Mapping[str, str]
    capped: Mapping[str, str]
    """What the cap shows of some long results."""
    kind: Kind
    scale: int
    contents: tuple[bytes, ...]
    """What its messages hold, to see whether somebody changed it."""

    def __repr__(self) -> str:
        return f"Talked({len(self.messages)} messages, {self.kind}, {self.scale})"

    @property
    def profile(self) -> Profile:
        return PROFILES[self.kind]

    @property
    def frame(self) -> Frame:
        options = _THINKS if self.kind == "manual" else {}
        return Frame(model="m", max_tokens=2_000, system="be brief", tools=_TOOLS, options=options)


class _Teller:
    """Tells a conversation turn by turn; ``scale`` makes what is long longer."""

    def __init__(self, kind: Kind, scale: int) -> None:
        self.kind = kind
        self.scale = scale
        self.messages: list[Message] = []
        self.stops: list[Stop] = []
        self.summaries: dict[str, str] = {}
        self.capped: dict[str, str] = {}
        self._turn = 0
        self._calls = 0
        self._now = 1_700_000_000.0
        self._committed = 0

    def _add(
        self, rng: random.Random, role: Role, blocks: list[dict[str, Any]], synthetic: int = 0
    ) -> None:
        self._now += rng.choice(_GAPS_S)
        at = len(self.messages)
        message = Message(
            id=message_id("s", TurnId("u" if role == "user" else "a", self._turn), at),
            session="s",
            turn=self._turn,
            role=role,
            body=encode_blocks(blocks),
            created_at=self._now if rng.random() < 0.95 else 0.0,
            synthetic=tuple(range(len(blocks) - synthetic, len(blocks))),
        )
        self.messages.append(message)
        if role == "user":
            self.stops.append(Stop(at + 1, self._committed))

    def turn(self, seed: int, *, is_open: bool) -> None:
        rng = random.Random(seed)
        self._turn += 1
        self._committed = len(self.messages)
        self._ask(rng)
        steps = 0 if seed == 0 else rng.choice((0, 1, 1, 2, 3, 5, 14))
        for number in range(steps):
            self._step(rng, opens=number == 0)
        if is_open:
            return
        # A turn that was stopped at a step has no last reply.
        if not steps or rng.random() < 0.8:
            self._reply(rng, opens=not steps)
        self.stops.append(Stop(len(self.messages), len(self.messages)))

    def _ask(self, rng: random.Random) -> None:
        blocks = [text(f"request {self._turn}: {self._said(rng)}")]
        if rng.random() < 0.15:
            path, body = rng.choice(PATHS), self._long(rng)
            blocks.append(text(f'<file_content path="{path}">\n{body}\n</file_content>'))
        if rng.random() < 0.15:
            blocks.append(image())
        receipts = int(rng.random() < 0.1)
        blocks += [text("[note: a call of the turn before had started]")] * receipts
        self._add(rng, "user", blocks, receipts)

    def _step(self, rng: random.Random, *, opens: bool) -> None:
        blocks = self._thought(rng, opens=opens)
        if rng.random() < 0.5:
            blocks.append(text(self._said(rng)))
        results = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            self._calls += 1
            call_id = f"c{self._calls}"
            name, arguments = self._call(rng)
            blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": arguments})
            output = self._output(rng, name)
            results.append(result_block(call_id, output, is_error=rng.random() < 0.15))
            capped = cap_content(output, max_chars=3_000, call_id=call_id)
            if capped is not None and rng.random() < 0.3:
                self.capped[call_id] = capped
            if rng.random() < 0.7:
                self.summaries[call_id] = f"what {name} {self._calls} said"
        self._add(rng, "assistant", blocks)
        settled = rng.random() < 0.05
        if not settled and rng.random() < 0.1:
            results.append(text(f"wait, {self._turn} is not all"))
        self._add(rng, "user", results, len(results) if settled else 0)

    def _reply(self, rng: random.Random, *, opens: bool) -> None:
        blocks = self._thought(rng, opens=opens)
        blocks.append(text(self._said(rng)))
        self._add(rng, "assistant", blocks)

    def _thought(self, rng: random.Random, *, opens: bool) -> list[dict[str, Any]]:
        if self.kind == "free" or not ((opens and self.kind == "manual") or rng.random() < 0.3):
            return []
        self._calls += 1
        if rng.random() < 0.2:
            return [{"type": "redacted_thinking", "data": f"r{self._calls}"}]
        thought = f"thought {self._calls} {self._long(rng)}"
        return [{"type": "thinking", "thinking": thought, "signature": f"s{self._calls}"}]

    def _long(self, rng: random.Random) -> str:
        chars = rng.choice(_SIZES) * self.scale
        return _of(rng, chars)

    def _said(self, rng: random.Random) -> str:
        words = f"{rng.choice(('look at', 'change', 'run'))} {rng.choice(PATHS)} {rng.random():.6f}"
        kind = rng.randrange(8)
        if kind == 0:
            return f"{words}\n```python\n{self._long(rng)}\n```"
        if kind == 1:
            return f"<thinking>hm {self._long(rng)}</thinking>{words}\n```\n{self._long(rng)}```\n"
        return f"{words} {self._long(rng)}" if kind == 2 else words

    def _call(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        path = rng.choice(PATHS)
        return rng.choice(
            (
                ("read_file", {"path": path}),
                ("read_file", {"path": path, "start_line": 1, "end_line": 9}),
                ("write_to_file", {"path": path, "content": self._long(rng)}),
                ("bash", {"command": f"run {rng.randrange(9)}", "task_progress": "- [ ] it"}),
                ("search", {"query": "what"}),
                ("skill", {"name": "review"}),
            )
        )

    def _output(self, rng: random.Random, name: str) -> Any:
        # Now and then as long as a whole file, or the log of a run.
        long = self._long(rng) if rng.random() < 0.7 else _of(rng, 6_000 * self.scale)
        said = f"{name} said {rng.random():.6f}\n{long}"
        kind = rng.randrange(10)
        if kind == 0:
            return ""
        if kind == 1:
            return [text(said), image()]
        return [text(said)] if kind == 2 else said


def contents_of(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """What *messages* hold now."""
    return tuple(msgspec.json.encode(message.content) for message in messages)


def tell(kind: Kind, scale: int, seeds: list[int], *, is_open: bool) -> Talked:
    """The conversation with a turn for each of *seeds*; if *is_open* the last one has no end.

    Equal ones are told once: every policy lives through the same."""
    return _told(kind, scale, tuple(seeds), is_open)


@lru_cache(maxsize=32)
def _told(kind: Kind, scale: int, seeds: tuple[int, ...], is_open: bool) -> Talked:
    teller = _Teller(kind, scale)
    for number, seed in enumerate(seeds, 1):
        teller.turn(seed, is_open=is_open and number == len(seeds))
    last = teller.stops[-1]
    picked = random.Random(sum(seeds)).sample(teller.stops, min(3, len(teller.stops)))
    return Talked(
        messages=tuple(teller.messages),
        stops=tuple(sorted({*picked, last})),
        summaries=teller.summaries,
        capped=teller.capped,
        kind=kind,
        scale=scale,
        contents=contents_of(teller.messages),
    )


def forget_all() -> None:
    """Tell every conversation anew: somebody has changed one."""
    _told.cache_clear()


def transcripts() -> st.SearchStrategy[Talked]:
    """Random valid conversations: of one to twelve turns, of a few thousand up to a few hundred
    thousand tokens, ended or with an open turn."""
    return st.builds(
        tell,
        st.sampled_from(sorted(PROFILES)),
        st.sampled_from((1, 12)),
        st.lists(st.integers(0, 1 << 30), min_size=1, max_size=12),
        is_open=st.booleans(),
    )
