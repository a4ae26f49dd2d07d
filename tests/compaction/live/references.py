"""What six systems would have sent, from what is known of them and nothing of ours.

Each reference takes a conversation and yields, request by request, the messages of the request.
They are small on purpose: a rule of the system is a line. Where a session deviates on purpose, the
line that deviates begins with ``ours``. The same deviations are named in
docs/explanation/policies.md:

- A call and its results stay together.
- Without a summary in front, a context begins with what a person wrote.
- The newest question and the open step (calls with their results) are always sent.
- Tokens are the session's, also where the system counts in another way.
- What a summary says is in our words, in front of the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from .comparing import SUMMARY
from .conversations import Held, Life, Sent, tokens_of

__all__ = [
    "Requests",
    "chatbot_ui",
    "continue_chat",
    "continue_cli",
    "jan",
    "librechat",
    "librechat_agents",
    "lobechat",
    "lobechat_window",
    "open_webui",
]

Requests: TypeAlias = Iterator[Sequence[Held]]


def sizes(messages: Sequence[Held]) -> int:
    return sum(map(tokens_of, messages))


def newest_that_fit(messages: Sequence[Held], room: int) -> int:
    """Where the longest suffix of at most *room* tokens begins."""
    start = len(messages)
    while start and tokens_of(messages[start - 1]) <= room:
        start -= 1
        room -= tokens_of(messages[start])
    return start


def next_question(messages: Sequence[Held], at: int) -> int:
    """The first position from *at* on with what a person wrote."""
    return next(index for index in range(at, len(messages)) if messages[index].is_asked)


def newest_question(messages: Sequence[Held]) -> int:
    return max(index for index, message in enumerate(messages) if message.is_asked)


def newest_step(messages: Sequence[Held]) -> int:
    """Where the open step begins: calls and their results, or the question that was just asked."""
    return len(messages) - (2 if messages[-1].results else 1)


class Folded:
    """A prefix that a summary stands for. A question in it may be kept, word for word."""

    def __init__(self) -> None:
        self.upto = 0
        self.question: int | None = None

    def fold(self, messages: Sequence[Held], upto: int) -> None:
        """Everything before *upto* is summarised, but the newest question is kept."""
        newest = newest_question(messages)
        self.upto = upto
        self.question = newest if newest < upto else None

    def shown(self, messages: Sequence[Held]) -> Sequence[Held]:
        summary = [SUMMARY] if self.upto else []
        kept = [] if self.question is None else [messages[self.question]]
        return [*summary, *kept, *messages[self.upto :]]

    def tokens(self, sent: Sent) -> int:
        """The messages of a request, if nothing more is folded."""
        return sent.added_before_tokens + self._kept_tokens(sent)

    def tokens_now(self, sent: Sent) -> int:
        """The messages of a request for which something was folded."""
        return sent.added_tokens + self._kept_tokens(sent)

    def _kept_tokens(self, sent: Sent) -> int:
        kept = [] if self.question is None else [sent.messages[self.question]]
        return sizes([*kept, *sent.messages[self.upto :]])


def librechat(life: Life) -> Requests:
    """Newest first, until the first that does not fit; three tokens open the reply."""
    for sent in life.requests:
        room = life.window - life.max_tokens - sent.frame_tokens - 3
        start = newest_that_fit(sent.messages, room)
        yield sent.messages[next_question(sent.messages, start) :]  # ours: begins with a question


def chatbot_ui(life: Life) -> Requests:
    """Newest first, until the first that does not fit."""
    for sent in life.requests:
        room = life.window - life.max_tokens - sent.frame_tokens
        start = newest_that_fit(sent.messages, room)
        yield sent.messages[next_question(sent.messages, start) :]  # ours: begins with a question


def librechat_agents(life: Life) -> Requests:
    """With 5 % held back: what does not fit is summarised, but for the two newest turns."""
    folded = Folded()
    for sent in life.requests:
        room = (life.window - life.max_tokens) * 95 // 100 - sent.frame_tokens
        if folded.tokens(sent) > room:
            asked = [i for i, message in enumerate(sent.messages) if message.is_asked]
            folded.fold(sent.messages, max(folded.upto, asked[-2]))
        yield folded.shown(sent.messages)


def open_webui(life: Life, threshold: int = 80_000, percent: int = 20) -> Requests:
    """Past the threshold a summary is written to the first message that is kept, a question: a
    fifth of the messages is kept, and what it takes to get to the question before them."""
    folded = Folded()
    for sent in life.requests:
        messages = sent.messages
        active = messages[folded.upto :]
        if len(active) > 3 and sent.reported_tokens + tokens_of(messages[-1]) > threshold:
            keep = max(2, len(active) * percent // 100)
            asked = [i for i in range(1, len(active)) if active[i].is_asked]
            boundary = max((i for i in asked if i <= len(active) - keep), default=0)
            if boundary:
                folded.fold(messages, folded.upto + boundary)
            # ours: if what is kept is past the threshold itself, it is cut turn by turn.
            while boundary and sent.frame_tokens + folded.tokens_now(sent) > threshold:
                later = [i for i in asked if i > boundary]
                if not later:
                    break
                folded.fold(messages, folded.upto + later[0] - boundary)
                boundary = later[0]
        yield folded.shown(messages)


def lobechat_window(life: Life, count: int = 8) -> Requests:
    """The newest eight messages."""
    for sent in life.requests:
        start = max(0, len(sent.messages) - count)
        while not sent.messages[start].is_asked:  # ours: begins with a question, which is before
            start -= 1
        yield sent.messages[start:]


def lobechat(life: Life) -> Requests:
    """Past three quarters of the window all is compressed, but for the newest question and the
    newest messages: a fifth of that, at most 32,000 tokens, not beginning with a result."""
    threshold = life.window * 75 // 100
    folded = Folded()
    for sent in life.requests:
        # ours: system text and tools count, too.
        if sent.frame_tokens + folded.tokens(sent) > threshold:
            start = newest_that_fit(sent.messages, min(threshold // 5, 32_000))
            while sent.messages[start].results:
                start += 1
            folded.fold(sent.messages, max(start, folded.upto))
        yield folded.shown(sent.messages)


def jan(life: Life) -> Requests:
    """At four fifths of the window all is summarised but the newest eight messages, which do not
    begin with a result. Less than two messages are not worth it; an earlier summary is one."""
    folded = Folded()
    for sent in life.requests:
        if sent.frame_tokens + folded.tokens(sent) >= life.window * 80 // 100:
            cut = len(sent.messages) - 8
            while sent.messages[cut].results:
                cut += 1
            if cut - folded.upto + bool(folded.upto) >= 2:
                folded.upto = cut
        yield folded.shown(sent.messages)


def continue_chat(life: Life) -> Requests:
    """The oldest go, one by one and with the results that follow, until the rest fits. The last
    question, or the last calls with their results, always stay."""
    room = life.window - min(1000, life.window * 2 // 100) - min(1000, life.max_tokens)
    room = min(room, life.window - life.max_tokens)  # ours: the whole reply is kept free
    for sent in life.requests:
        messages, start = sent.messages, 0
        while start < newest_step(messages) and sizes(messages[start:]) > room - sent.frame_tokens:
            start += 1
            while messages[start].results:
                start += 1
        yield messages[next_question(messages, start) :]  # ours: begins with a question


def continue_cli(life: Life) -> Requests:
    """Near the end of the window a summary takes the place of everything."""
    reply = life.max_tokens
    buffer = min(max(reply, -(-(life.window - reply) // 5)), 15_000)
    folded = Folded()
    for sent in life.requests:
        if sent.frame_tokens + folded.tokens(sent) >= life.window - reply - buffer:
            # ours: the newest question and the open step stay.
            folded.fold(sent.messages, newest_step(sent.messages))
        yield folded.shown(sent.messages)
