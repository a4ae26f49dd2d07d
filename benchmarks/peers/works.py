"""The works: what each asks of a peer and what is measured. The adapters' contract.

An adapter is a script, ``python adapter.py WORK JSON_OPTIONS``, with ``common.py`` on its path. It
prints one line of JSON: its measurements, or ``{"unsupported": why}`` in the words of the library's
documentation. ``common.py`` plays every work itself; an adapter gives it a way to open a session
(``Open``) with ``send`` and ``cancel`` as the library's documentation says, and nothing else. The
options are ``base_url``, ``model``, ``seed``, ``folder``, ``window_tokens`` and the sizes below.

What the model was sent is read from the strict server's log, not from the library: see
``reading.py``. The measures marked "server" there need nothing from the adapter.

The work of each adapter function, by its name in ``main({...})``:

``two_sends(open)``
    a session with the tool ``slow``. Two sends at once; the library may queue, refuse or mix them.
``random_cancels(open)``
    a new session for each cancel, with the tools ``quick`` and ``slow``. Streams, if it can.
``stubborn_tool(open)``
    a session with the tool ``stubborn``.
``long_conversation(open_filled)``
    a session in memory that holds the conversation given, put there in the documented way.
``compaction(open_compacting)``
    a session with the tool ``read`` and the library's own documented compaction, with a window of
    ``options.size("window_tokens")`` tokens. What has a threshold is left at its default, or set to
    what the documentation recommends.
``persistence(open_durable)``
    the documented durable session store, in ``options.folder``. The same function opens the session
    when it is there already: after a kill it is called in a new process.
``thousand_sessions(open)``
    as ``two_sends``; one process, the sessions share a client where the library lets them.

A tool is a function of ``AsyncTools`` (or ``BlockingTools``, for a library that runs tools in
threads only), offered under its own name with one argument, ``tag``, a string.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .model_server import SMALL_WINDOW_TOKENS

__all__ = ["WORKS", "Measure", "Work"]

Better = Literal["less", "more", "told"]
"""``told`` is for the reader: neither is better."""


class Measure(msgspec.Struct, frozen=True):
    """One figure of a work. A truth value counts as 1 or 0; of a list the median counts."""

    name: str
    better: Better
    unit: str
    says: str


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One work. ``plotted`` is the measure that its plot shows; ``apart`` says what of it is not to
    be compared, and why."""

    name: str
    title: str
    asks: str
    measures: tuple[Measure, ...]
    plotted: str
    apart: str
    sizes: dict[str, int] = {}
    quick: dict[str, int] = {}
    model: str = "test-model"
    window_tokens: int = 128_000
    limit_s: float = 600.0
    """When a run is broken off; each of those after a kill has as long."""


WORKS: dict[str, Work] = {
    work.name: work
    for work in (
        Work(
            name="two_sends",
            title="Two sends at once on one session",
            asks="Two sends start at once on one session. Each is a turn with a tool of 0.2 s. Then"
            " a third send follows alone. What it carries to the model is the history that the two"
            " have left.",
            measures=(
                Measure("kept", "more", "of 2", "turns that are whole in the history"),
                Measure("interleaved", "less", "", "the two turns stand mixed in the history"),
                Measure("unmixed", "more", "of 2", "turns that are whole and not mixed"),
                Measure("informed", "more", "", "one turn was requested with the other in it"),
                Measure("answered", "more", "of 2", "senders that got the answer to their message"),
                Measure("error", "told", "", "what the other sender got"),
                Measure("history_valid", "more", "", "the third send was accepted"),
            ),
            plotted="unmixed",
            apart="a library may document that a session is used by one run at a time. A library"
            " that refuses the second send leaves it to the program to send again, and says so. A"
            " library that mixes or loses a turn says nothing. Two libraries put the second message"
            " into the turn that runs, on purpose. The model here then answers the second one only;"
            " a real one might answer both.",
        ),
        Work(
            name="random_cancels",
            title="Cancelling at a random moment",
            asks="A turn with two tools is cancelled at a random moment between 0.02 and 0.6 s, in"
            " the documented way. Then comes the next send. Each cancel has a new session.",
            measures=(
                Measure("refused_next", "less", "", "next requests that the server refused"),
                Measure("failed_next", "less", "", "next sends that failed for any reason"),
                Measure("cancel_ms", "less", "ms", "from the cancel until the send has ended"),
                Measure("hangs", "less", "", "sends that had not ended 5 s after the cancel"),
                Measure("orphans", "less", "", "next requests with an unanswered call"),
                Measure("partial_left", "told", "", "histories that keep a part of the turn"),
                Measure("left", "told", "", "what they keep"),
                Measure("late", "told", "", "turns that were over before the cancel"),
            ),
            plotted="cancel_ms",
            apart="what is kept of a cancelled turn is a choice. Keeping a part is no fault if the"
            " next request is valid and says what was cut. It is a fault if the server refuses that"
            " request. A cancel of ours ends when its record is in the store, which is in memory"
            " here. A cancelled task ends when its cleanup does.",
            sizes={"cancels": 60},
            quick={"cancels": 4},
        ),
        Work(
            name="stubborn_tool",
            title="A tool of one second that ignores cancellation",
            asks="The tool swallows its cancellation. The cancel comes 0.2 s after its start. When"
            " the tool has finished, the next send shows what the model is told of it.",
            measures=(
                Measure("return_s", "less", "s", "from the cancel until the send has ended"),
                Measure("cpu_s", "less", "s", "CPU in the 1.2 s after the cancel"),
                Measure("false_outcome", "less", "", "the model is told that it did not happen"),
                Measure("told", "told", "", "what the model is told"),
                Measure("next_refused", "less", "", "the next request was refused"),
            ),
            plotted="return_s",
            apart="a library that returns at once lets the tool run on unwatched. A library that"
            " waits lets the tool hold the session. Ours gives the tool a grace of 0.1 s, which is"
            " the default, and then goes on without it.",
        ),
        Work(
            name="long_conversation",
            title="A long conversation",
            asks="Twenty more turns on a session in memory that already holds 2,000 messages.",
            measures=(
                Measure("build_ms", "less", "ms", "from the send to its request's arrival"),
                Measure("cpu_ms", "less", "ms", "CPU of a turn, on the peer's side"),
                Measure("stall_ms_max", "less", "ms", "longest time the event loop stood still"),
                Measure("rss_mb", "less", "MB", "memory at the end"),
                Measure("rss_start_mb", "told", "MB", "memory with the library imported"),
                Measure("failed", "less", "", "turns that failed"),
            ),
            plotted="build_ms",
            apart="the time includes sending some 300 kB over the loopback and reading them, the"
            " same for all. `openai and a list` is that and the SDK. In this time ours also checks"
            " every request by the validity rules. Libraries read their sessions from different"
            " places: a list, a copy of a list, SQLite in memory.",
            sizes={"messages": 2_000, "turns": 20},
            quick={"messages": 40, "turns": 3},
        ),
        Work(
            name="compaction",
            title="Compaction",
            asks="Each of sixty turns reads a file of 2,000 characters, with the library's own"
            f" compaction. The window is {SMALL_WINDOW_TOKENS:,} tokens, which the conversation"
            " exceeds about twice over. A summary takes the model half a second.",
            measures=(
                Measure("valid_after", "more", "", "every turn was answered"),
                Measure("stall_ms_max", "less", "ms", "longest time the event loop stood still"),
                Measure(
                    "requests_for_summaries", "told", "", "requests to the model for summaries"
                ),
                Measure("prefix_rewrites", "less", "", "requests that change what was sent before"),
                Measure("cached_share", "more", "", "tokens that the provider's cache had"),
                Measure("peak_tokens", "told", "tokens", "the largest request"),
                Measure("seconds", "less", "s", "for all turns"),
                Measure("failed", "less", "", "turns that failed"),
            ),
            plotted="prefix_rewrites",
            apart="each library makes something else of the history. Some shorten tool results by"
            " rules, others have the model write a text. These figures do not show what the model"
            " still knows afterwards, or what a summary costs. claude-agent-sdk keeps 13,000 tokens"
            " of any window free, so it is told of a larger one, and summarises at 13,000 of"
            " 16,000.",
            sizes={"turns": 60},
            quick={"turns": 4},
            model="small-window",
            window_tokens=SMALL_WINDOW_TOKENS,
        ),
        Work(
            name="persistence",
            title="A durable session, and kill -9",
            asks="First 200 turns of one session in the documented durable store. Then turns with"
            " tools, until SIGKILL ends the process in the middle of one, and a send in a new"
            " process. This is done five times, each in a fresh folder.",
            measures=(
                Measure("turns_per_s", "more", "turns/s", "turns a second, one after the other"),
                Measure("cpu_ms", "less", "ms", "CPU of a turn, on the peer's side"),
                Measure("lost_after_kill", "less", "", "turns that were answered and are gone"),
                Measure("half_after_kill", "less", "", "histories that keep a part of a turn"),
                Measure("recovers", "more", "of kills", "sends after a kill that were answered"),
                Measure("failed", "less", "", "turns that failed without a kill"),
            ),
            plotted="turns_per_s",
            apart="the stores do not promise the same. Some write a message or a step at a time and"
            " keep a part of a turn on purpose. Some write the whole conversation anew each turn. A"
            " killed process says nothing about a loss of power.",
            sizes={"turns": 200, "kills": 5},
            quick={"turns": 3, "kills": 1},
        ),
        Work(
            name="thousand_sessions",
            title="A thousand sessions",
            asks="One process runs a turn on each session at once. A reply streams over 0.5 s.",
            measures=(
                Measure("seconds", "less", "s", "until all are answered"),
                Measure("cpu_s", "less", "s", "CPU of its processes"),
                Measure("rss_mb", "less", "MB", "memory at the end"),
                Measure("failed", "less", "", "sessions without their answer"),
            ),
            plotted="seconds",
            apart="the model and the library share the machine, and the model's part is in"
            " `seconds`. `cpu_s` is the library's own. The openai SDK gives a connection five"
            " seconds by default, which a thousand at once exceed. Where a library takes a client,"
            " that one has ten minutes.",
            sizes={"sessions": 1_000, "limit_s": 1_500},
            quick={"sessions": 5, "limit_s": 60},
            limit_s=1_800,
        ),
    )
}
"""By name, in the order that they are run and told."""
