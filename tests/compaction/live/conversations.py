"""A conversation under a policy, in a real session: what the client holds, and what was sent.

The manager, the actor, the scheduler and the store are the real ones; the model is a script. Each
reply reports its usage as a provider with a warm prompt cache does, and no time passes between the
requests, so the cache never gets cold.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from llmsession import CompactionConfig, Tool
from llmsession.session.tasks.worker_thread import in_virtual_threads
from llmsession.testing.scripted import Scripted, ScriptedProvider, ScriptedReply, call, say
from llmsession.turns import records as r
from llmsession.turns.request import Profile, Request, RequestMessage, StepTag
from llmsession.turns.usage import Usage
from tests.session.actors import settled, stage

__all__ = ["MESSAGE_TOKENS", "Block", "Held", "Life", "Sent", "lived", "tokens_of"]

Block: TypeAlias = dict[str, Any]
MESSAGE_TOKENS = 4
CHARS_PER_TOKEN = 4
SYSTEM = "You work on the project with the tools that you have."
_WORDS = "the parser returns a wrong offset when lines are empty so we look at it again and"
_TOOLS = ("read_file", "execute_command", "write_to_file", "search")


class Held(NamedTuple):
    """A message as a client holds it."""

    role: str
    blocks: tuple[Block, ...]

    @property
    def calls(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block["type"] == "tool_use")

    @property
    def results(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block["type"] == "tool_result")

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def is_asked(self) -> bool:
        """Did a person write it?"""
        return self.role == "user" and not self.results


def _chars_of(message: Held) -> int:
    """The characters of a message: texts, results, and calls with their inputs as JSON."""
    total = 0
    for block in message.blocks:
        if block["type"] == "text":
            total += len(block["text"])
        elif block["type"] == "tool_result":
            total += len(block["content"])
        else:
            fields = block["input"]
            total += len(block["name"])
            total += sum(len(name) + len(value) + 4 for name, value in fields.items())
    return total


def tokens_of(message: Held) -> int:
    """The tokens of a message: four characters each, and four for the message."""
    return -(-_chars_of(message) // CHARS_PER_TOKEN) + MESSAGE_TOKENS


class Sent(NamedTuple):
    """One request, and what a client knew when it went out."""

    messages: tuple[Held, ...]
    """All of the conversation."""
    request: tuple[Held, ...]
    """The messages of the request."""
    frame_tokens: int
    """System text and tools."""
    reported_tokens: int
    """Prompt and reply of the request before, as the provider reported them; 0 before the first."""
    added_tokens: int
    """What the request has in no message of the conversation: a summary, notices. Their words are
    ours, so how long they are is all that a reference cannot know by itself."""
    added_before_tokens: int
    """The same of the request before."""


class Life(NamedTuple):
    """A conversation that was held under one policy."""

    window: int
    max_tokens: int
    requests: tuple[Sent, ...]
    records: tuple[r.CompactionApplied, ...]


def _held(message: RequestMessage | Any) -> Held:
    return _read(message.role, bytes(message.body))


@cache
def _read(role: str, body: bytes) -> Held:
    """Cached, because each request repeats the messages of the one before it."""
    return Held(role, tuple(msgspec.json.decode(body)))


def _frame(request: Request) -> int:
    chars = len(request.system or "") + sum(len(bytes(tool)) for tool in request.tools)
    return -(-chars // CHARS_PER_TOKEN)


class _Model:
    """Says the script, and reports usage as with a warm cache."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._cached = 0
        self.reported: list[int] = []

    def __call__(self, request: Request, tag: StepTag) -> Scripted:
        reply = _reply(tag.turn, tag.step, self._tokens)
        prompt = _frame(request) + sum(tokens_of(_held(item)) for item in request.messages)
        blocks = tuple(msgspec.json.decode(raw) for raw in reply.blocks)
        output = tokens_of(Held("assistant", blocks))
        read = min(self._cached, prompt - 3)
        self._cached = prompt
        self.reported.append(prompt + output)
        return reply.costing(
            Usage(
                input_tokens=3, output_tokens=output, cache_read_tokens=read,
                cache_write_tokens=prompt - read - 3,
            )
        ).slow(0.0, delta_chars=1_000)  # fmt: skip


def _text(name: str, tokens: int) -> str:
    """About so many tokens of words, which begin with *name*."""
    line = f"{name}: {_WORDS}.\n"
    chars = tokens * CHARS_PER_TOKEN
    return (line * (chars // len(line) + 1))[:chars].rstrip()


def steps_of(turn: int) -> int:
    """How many times the model calls tools in a turn. The first turn has no tools."""
    return 0 if turn == 1 else (1, 3, 0, 2)[turn % 4]


def _reply(turn: int, step: int, tokens: int) -> ScriptedReply:
    name = f"reply {turn}.{step}"
    if step > steps_of(turn):
        return say(_answer(name, turn, tokens))
    reply = say(_text(name, tokens // 10)) + _call(turn, step, 1)
    return reply + _call(turn, step, 2) if (turn + step) % 3 == 0 else reply


def _answer(name: str, turn: int, tokens: int) -> str:
    """The last reply of a turn: long, and now and then with code or with spelled-out thoughts."""
    answer = _text(name, tokens * (2 + turn % 3) // 3)
    if turn % 5 == 0:
        answer += f"\n```typescript\n{_text(f'code {turn}', tokens)}\n```\nThat is all."
    if turn % 7 == 0:
        answer = f"<thinking>{_text(f'thought {turn}', tokens // 8)}</thinking>{answer}"
    return answer


def _call(turn: int, step: int, number: int) -> ScriptedReply:
    which = turn + step + number
    name = _TOOLS[which % 4]
    given: dict[str, str]
    match name:
        case "read_file":
            given = {"path": f"src/file{which % 3}.py"}
        case "execute_command":
            given = {"command": f"make test{which}"}
        case "write_to_file":
            given = {"path": f"src/file{which % 3}.py", "content": f"line {which}\n" * 10}
        case _:
            given = {"query": f"offset {which}"}
    return call(name, given, id=f"t{turn}s{step}n{number}")


class _Results:
    """The tools: each result is longer than a reply, and no two of them are equal."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._count = 0

    async def __call__(self, **given: str) -> str:
        self._count += 1
        text = _text(f"result {self._count}", self._tokens * (3 + self._count % 3) // 3)
        if "content" not in given:
            return text
        path = given["path"]
        return f'Saved.\n<final_file_content path="{path}">\n{text}\n</final_file_content>'


async def lived(
    policy: str,
    *,
    tokens: int,
    turns: int = 26,
    window: int = 200_000,
    max_tokens: int = 8_000,
    **options: Any,
) -> Life:
    """The conversation of so many *turns* under *policy* with its *options*. A reply has about
    *tokens* tokens, a result up to twice as many, and what the user says a third."""
    model = _Model(tokens)
    profile = Profile(chars_per_token=float(CHARS_PER_TOKEN), window_tokens=window)
    provider = ScriptedProvider(model, profile=profile)
    results = _Results(tokens)
    with in_virtual_threads(checkpoint):
        started_at = anyio.current_time()
        async with stage(
            provider=provider,
            tools=[Tool(name=name, run=results) for name in _TOOLS],
            system=SYSTEM,
            max_tokens=max_tokens,
            compaction=CompactionConfig(policy=policy, options=options),
        ) as on:
            for turn in range(1, turns + 1):
                await on.say(_text(f"question {turn}", tokens // 3))
                await settled()
            messages = tuple(map(_held, on.session.conversation()))
            # A cache would get cold, and a tool would miss its deadline. Results of a step of
            # over 32,000 characters are prepared in a thread, which virtual time does not see.
            assert anyio.current_time() - started_at < 60.0, "time has passed"
            applied = [
                record for record in await on.log() if isinstance(record, r.CompactionApplied)
            ]
    ends = [index + 1 for index, message in enumerate(messages) if message.role == "user"]
    assert len(ends) == len(provider.requests)
    texts = {block["text"] for message in messages for block in message.blocks if "text" in block}
    added = [0, *(_added(request, texts) for request in provider.requests)]
    requests = [
        Sent(
            messages[:end],
            tuple(map(_held, request.messages)),
            _frame(request),
            ([0, *model.reported])[number],
            added[number + 1],
            added[number],
        )
        for number, (end, request) in enumerate(zip(ends, provider.requests, strict=True))
    ]
    return Life(window, max_tokens, tuple(requests), tuple(applied))


def _added(request: Request, texts: Collection[str]) -> int:
    words = [block for message in request.messages for block in _held(message).blocks]
    chars = [len(block["text"]) for block in words if block.get("text", "") not in {"", *texts}]
    return sum(-(-count // CHARS_PER_TOKEN) for count in chars)
