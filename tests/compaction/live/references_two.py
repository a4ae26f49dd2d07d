"""What six more systems would have sent: see ``references``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .comparing import note, shortened
from .conversations import MESSAGE_TOKENS, Block, Held, Life, Sent, tokens_of
from .references import (
    Folded,
    Requests,
    newest_question,
    newest_step,
    newest_that_fit,
    next_question,
    sizes,
)

__all__ = [
    "chainreview",
    "cline",
    "cline_sdk",
    "codebuddy",
    "codebuddy_chat",
    "minisearch",
    "neurolink",
    "neurolink_stages",
    "roo",
    "roo_truncation",
]

CLINE_ALLOWED = {64_000: 37_000, 128_000: 98_000, 200_000: 160_000}
CLINE_NOTICE = (
    "[[NOTE] This file read has been removed to save space in the context window. Refer to the"
    " latest file read for the most up to date version of this file.]"
)


def cline(life: Life) -> Requests:
    """Reads of a file but for the last are replaced by a notice. If that saves less than 30 %, half
    of the messages between the first two and the newest go too, or three quarters."""
    default = max(life.window - 40_000, life.window * 4 // 5)
    allowed = CLINE_ALLOWED.get(life.window, default)
    end, noticed = 1, set[str]()  # the range that is left out is [2, end]
    for sent in life.requests:
        messages = sent.messages
        # ours: what came since the last reply is counted, too.
        total = sent.reported_tokens + tokens_of(messages[-1])
        if total >= allowed:
            active = [*messages[:2], *messages[end + 1 :]]
            chars = all_chars(active, noticed)
            noticed |= stale_reads(active)
            if (chars - all_chars(active, noticed)) * 10 < 3 * chars:
                start, count = end + 1, len(messages)
                rest = count - start
                removed = rest * 3 // 4 // 2 * 2 if total / 2 > allowed else rest // 4 * 2
                last = start + removed - 1
                if removed and messages[last].role != "assistant":
                    last -= 1
                while messages[last + 1].results:  # ours: a call and its results stay together
                    last -= 1
                end = max(end, last)
        shown = [with_notices(message, noticed) for message in messages]
        yield [*shown[:2], *([note("[NOTE]")] if end > 1 else []), *shown[end + 1 :]]


def stale_reads(messages: Sequence[Held]) -> set[str]:
    """The calls whose results are not the last that show their file."""
    last: dict[str, str] = {}
    stale = set()
    for call in (call for message in messages for call in message.calls):
        if call["name"] in ("read_file", "write_to_file"):
            path = call["input"]["path"]
            stale |= {last[path]} if path in last else set()
            last[path] = call["id"]
    return stale


def with_notices(message: Held, noticed: set[str]) -> Held:
    def changed(block: Block) -> Block:
        if block.get("tool_use_id") not in noticed:
            return block
        before, tag, file = block["content"].partition('.py">')
        behind = "</final_file_content>"
        content = f"{before}{tag}{CLINE_NOTICE}{behind}" if file.endswith(behind) else CLINE_NOTICE
        return {**block, "content": content}

    return Held(message.role, tuple(map(changed, message.blocks)))


def all_chars(messages: Sequence[Held], noticed: set[str]) -> int:
    blocks = [block for message in messages for block in with_notices(message, noticed).blocks]
    return sum(len(block.get("text", "") + block.get("content", "")) for block in blocks)


def cline_sdk(life: Life) -> Requests:
    """At nine tenths: all that a person typed stays, and what fits of the newest turn, and of each
    older turn the last reply, the newest first. The rest becomes a notice behind what was typed
    before it."""
    most = life.window - life.max_tokens  # ours: the most input is the session's budget
    trigger = most * 9 // 10
    gone: set[int] = set()
    for sent in life.requests:
        messages = sent.messages
        asked = [index for index, message in enumerate(messages) if message.is_asked]
        shown = [index for index in range(len(messages)) if index not in gone]
        size = sent.frame_tokens + sent.added_before_tokens
        if size + sizes([messages[index] for index in shown]) >= trigger:
            is_long = len(asked) >= 5 and life.max_tokens < most
            target = min(most // 2 if is_long else trigger * 7 // 10, trigger - 1)
            # ours: the notices have their room.
            room = target - sent.frame_tokens - sent.added_tokens
            room -= sizes([messages[index] for index in asked])
            newest = asked[-1] + 1 + newest_that_fit(messages[asked[-1] + 1 :], room)
            while newest < len(messages) and messages[newest].role != "assistant":
                newest += 1
            newest = min(newest, newest_step(messages))  # ours: the open step stays
            room -= sizes(messages[max(newest, asked[-1] + 1) :])
            kept = {*asked, *range(newest, len(messages))}
            # ours: a reply that was kept before goes where there is no room for newer ones. Cline
            # keeps it for good, and in the end has room for nothing else. Which replies fit beside
            # the notices depends on the words of these, so it is taken from the request.
            replies = {index - 1 for index in asked[1:]} & set(shown)
            replies = {index for index in replies if messages[index] in sent.request}
            assert sizes([messages[index] for index in replies]) <= max(0, room)
            gone |= set(range(len(messages))) - kept - replies
        yield with_spans_noticed(messages, gone)


def with_spans_noticed(messages: Sequence[Held], gone: set[int]) -> list[Held]:
    """*messages* with one notice for each span that is left out, where it was."""
    shown = []
    for index, message in enumerate(messages):
        if index not in gone:
            shown.append(message)
        elif index - 1 not in gone:
            shown.append(note("Earlier context was compacted."))
    return shown


def roo(life: Life) -> Requests:
    """A fresh start: a summary takes the place of everything once the window is nearly full."""
    allowed = life.window * 9 // 10 - life.max_tokens
    folded = Folded()
    for sent in life.requests:
        if sent.reported_tokens + tokens_of(sent.messages[-1]) > allowed:
            # ours: the newest question and the open step stay.
            folded.fold(sent.messages, newest_step(sent.messages))
        yield folded.shown(sent.messages)


def roo_truncation(life: Life) -> Requests:
    """Half of what is visible behind the first message is hidden, an even number; a marker says
    how many messages that are."""
    allowed = life.window * 9 // 10 - life.max_tokens
    hidden_upto = 1
    for sent in life.requests:
        messages = sent.messages
        if sent.reported_tokens + tokens_of(messages[-1]) > allowed:
            visible = 1 + len(messages) - hidden_upto
            count = (visible - 1) // 2 // 2 * 2
            upto = hidden_upto + count
            while messages[upto].results:  # ours: a call and its results stay together
                upto -= 1
            hidden_upto = max(hidden_upto, upto)
        marker = [note("Sliding window truncation")] if hidden_upto > 1 else []
        yield [messages[0], *marker, *messages[hidden_upto:]]


FENCE = re.compile(r"```(?:json|text|typescript|javascript)?\n([\s\S]*?)```")


def cleaned(text: str) -> str:
    """Without spelled-out thoughts, with long code cut in its middle, and at most 6,000
    characters."""
    text = re.sub(r"<thinking>[\s\S]*?</thinking>", "", text)

    def cut(fence: re.Match[str]) -> str:
        code = fence[1]
        if len(code) < 2000:
            return fence[0]
        short = f"{code[:800]}\n... [truncated {len(code) - 1200} chars] ...\n{code[-400:]}"
        return fence[0].replace(code, short)

    text = FENCE.sub(cut, text)
    return (text if len(text) <= 6000 else text[:6000] + "\n... [truncated]").strip()


def chainreview(life: Life, budget: int = 30_000) -> Requests:
    """Every text is cleaned, in every request. Then newest first, until the first that does not
    fit, from a question on."""
    for sent in life.requests:
        messages = [
            Held(
                message.role,
                tuple(
                    {**block, "text": cleaned(block["text"])} if block["type"] == "text" else block
                    for block in message.blocks
                ),
            )
            for message in sent.messages
        ]
        start = newest_quarters(messages, budget)
        yield messages[next_question(messages, start) :]


def newest_quarters(messages: Sequence[Held], room: int) -> int:
    """As ``newest_that_fit``, where a token is four characters, and nothing else counts."""
    start = len(messages)
    while start and tokens_of(messages[start - 1]) - MESSAGE_TOKENS <= room:
        start -= 1
        room -= tokens_of(messages[start]) - MESSAGE_TOKENS
    return start


def codebuddy(life: Life, count: int = 50, most: int = 32_000) -> Requests:
    """The newest fifty messages; of these newest first, until the first that does not fit."""
    for sent in life.requests:
        # ours: system text and tools count.
        start = newest_quarters(sent.messages, most - sent.frame_tokens)
        start = max(start, len(sent.messages) - count)
        yield sent.messages[next_question(sent.messages, start) :]  # ours: begins with a question


def codebuddy_chat(life: Life) -> Requests:
    """What does not fit is summarised, but for the newest four messages. If that is not enough,
    pairs go, the oldest first, and never the summary (which CodeBuddy may lose)."""
    folded = Folded()
    most = life.window - life.max_tokens
    for sent in life.requests:
        messages = sent.messages
        active = len(messages) - folded.upto + bool(folded.upto)
        if sent.frame_tokens + folded.tokens(sent) > most and active >= 6:
            start = len(messages) - 4
            while messages[start].results:  # ours: a call and its results stay together
                start -= 1
            folded.fold(messages, max(start, folded.upto))
        yield folded.shown(messages)


SUMMARY_TOKENS = 800


def minisearch(life: Life, window: int = 4096) -> Requests:
    """Newest first, until the first that does not fit beside the summary in three quarters of
    4,096 tokens. What is older is folded into the summary."""
    folded = Folded()
    for sent in life.requests:
        room = window * 3 // 4 - sent.frame_tokens  # ours: there is no stub reply ("Ok!")
        # ours: what is folded is not shown again, and the longest summary has its room.
        if folded.tokens(sent) > room:
            start = newest_that_fit(sent.messages, room - SUMMARY_TOKENS)
            folded.upto = max(folded.upto, next_question(sent.messages, start))
        yield folded.shown(sent.messages)


def neurolink(life: Life) -> Requests:
    """At four fifths of what may be sent all is summarised but the newest messages, three tenths of
    that."""
    threshold = (life.window - life.max_tokens) * 4 // 5
    folded = Folded()
    for sent in life.requests:
        messages = sent.messages
        # ours: it is looked at before each request, and not only where a turn has ended.
        # ours: system text and tools count, too.
        if sent.frame_tokens + folded.tokens(sent) >= threshold:
            start = newest_that_fit(messages, threshold * 3 // 10)
            while messages[start].results:  # ours: a call and its results stay together
                start += 1
            folded.upto = max(folded.upto, min(start, newest_question(messages)))  # ours: it stays
        yield folded.shown(messages)


def neurolink_stages(life: Life, protected: int = 40_000) -> Requests:
    """Over what may be sent: results before the newest 40,000 tokens of results are cleared. If
    that is not enough, all but three tenths is summarised."""
    most = life.window - life.max_tokens
    folded, cleared = Folded(), set[str]()
    for sent in life.requests:
        messages = sent.messages
        shown = [with_clearing(message, cleared) for message in messages]
        if sent.frame_tokens + folded.tokens(_with(sent, shown)) > most:
            room, stale = protected, set()
            for message in reversed(messages[folded.upto :]):
                for block in reversed(message.results):
                    room -= -(-len(block["content"]) // 4)
                    stale |= {block["tool_use_id"]} if room < 0 else set()
            cleared |= stale
            shown = [with_clearing(message, cleared) for message in messages]
            if sent.frame_tokens + folded.tokens(_with(sent, shown)) > most:
                start = newest_that_fit(shown, most * 3 // 10)
                while messages[start].results:  # ours: pairs stay together
                    start += 1
                folded.fold(messages, max(start, folded.upto + 1))
        yield folded.shown(shown)


def _with(sent: Sent, shown: Sequence[Held]) -> Sent:
    return sent._replace(messages=tuple(shown))


def with_clearing(message: Held, cleared: set[str]) -> Held:
    return Held(
        message.role,
        tuple(
            {**block, "content": "[Tool result cleared]"}
            if block.get("tool_use_id") in cleared
            else block
            for block in message.blocks
        ),
    )


def cline_sidecar(life: Life, preserved: int = 20_000) -> Requests:
    """At nine tenths all is summarised but the newest 20,000 tokens, or what the target allows if
    that is less, and never less than the newest typed turn."""
    most = life.window - life.max_tokens  # ours: the most input is the session's budget
    trigger = most * 9 // 10
    folded = Folded()
    for sent in life.requests:
        messages = sent.messages
        if sent.frame_tokens + folded.tokens(sent) >= trigger:
            asked = sum(message.is_asked for message in messages)
            is_long = asked >= 5 and life.max_tokens < most
            target = min(most // 2 if is_long else trigger * 7 // 10, trigger - 1)
            start = newest_that_fit(messages, min(preserved, target))
            start = min(start, newest_question(messages))
            while messages[start].results:
                start -= 1
            folded.upto = max(folded.upto, start)
        yield folded.shown(messages)


OUTDATED = "[outdated - see the latest file content]"


def cline_stale_reads(life: Life, batch: int = 65_536) -> Requests:
    """Reads of a file that was read again stay until 64 KiB of them wait; then all of them go."""
    gone = set[str]()
    for sent in life.requests:
        results = {block["tool_use_id"]: block for m in sent.messages for block in m.results}
        newest: dict[str, str] = {}
        waiting = []
        for block in (call for message in sent.messages for call in message.calls):
            if block["name"] == "read_file":
                path = block["input"]["path"]
                waiting += [newest[path]] if path in newest else []
                newest[path] = block["id"]
        waiting = [call for call in waiting if call not in gone]
        if sum(len(results[call]["content"]) - len(OUTDATED) for call in waiting) >= batch:
            gone |= set(waiting)
        yield [
            Held(
                message.role,
                tuple(
                    {**block, "content": OUTDATED} if block.get("tool_use_id") in gone else block
                    for block in message.blocks
                ),
            )
            for message in sent.messages
        ]


def librechat_masking(life: Life) -> Requests:
    """At four fifths results that the model has answered in words are cut to head and tail, each to
    its share: the older, the less."""
    effective_window = (life.window - life.max_tokens) * 95 // 100
    shorter: dict[str, int] = {}
    for sent in life.requests:
        effective = effective_window - sent.frame_tokens
        used = sent.reported_tokens + tokens_of(sent.messages[-1]) - sent.frame_tokens
        if used * 100 >= effective * 80:
            consumed = [block for message in sent.messages[:-1] for block in message.results]
            for index, block in enumerate(consumed):
                weight = 0.2 + 0.8 * (index / max(1, len(consumed) - 1))
                share = max(300, int(effective * 4 * weight / (0.6 * len(consumed))))
                if len(block["content"]) > share:
                    shorter.setdefault(block["tool_use_id"], share)
        yield [with_shortened(message, shorter) for message in sent.messages]


BANDS = ((99, 0.05), (90, 0.2), (85, 0.5), (80, 1.0))


def librechat_fading(life: Life) -> Requests:
    """The fuller, the shorter: each result is cut to a share of the effective budget, which falls
    with the pressure and with the result's age."""
    effective_window = (life.window - life.max_tokens) * 95 // 100
    shorter: dict[str, int] = {}
    for sent in life.requests:
        budget = effective_window - sent.frame_tokens
        used = sent.reported_tokens + tokens_of(sent.messages[-1]) - sent.frame_tokens
        factor = next((part for percent, part in BANDS if used * 100 >= budget * percent), None)
        if factor is not None:
            effective = max(1024, int(budget * factor))
            results = [block for message in sent.messages for block in message.results]
            for index, block in enumerate(results):
                weight = 0.2 + 0.8 * (index / max(1, len(results) - 1))
                most = max(200, int(min(0.3 * effective * 4, 400_000) * weight))
                if len(block["content"]) > most:
                    shorter.setdefault(block["tool_use_id"], most)
        yield [with_shortened(message, shorter) for message in sent.messages]


def with_shortened(message: Held, shorter: dict[str, int]) -> Held:
    return Held(
        message.role,
        tuple(
            shortened(block, shorter[block["tool_use_id"]])
            if block.get("tool_use_id") in shorter
            else block
            for block in message.blocks
        ),
    )
