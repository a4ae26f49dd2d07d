"""Every registered policy keeps the contract, G1 to G12 of ``contract.py``; a policy that is
registered is asked by itself. And each rule bites: a policy that breaks it is caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, TypeAlias

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import replace

from llmsession.compaction.planning.boundaries import must_wait, newest_request
from llmsession.compaction.planning.policy import Budget, Policy
from llmsession.compaction.policies import make_policy, policy_names
from llmsession.compaction.rules.check import check_against_history, check_request
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.projection import project
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.messages import Message
from llmsession.turns.records import Injected, PrefixSummary
from tests.compaction.conversations import a_plan
from tests.compaction.policies.contract import (
    RULES,
    Depth,
    Violation,
    exempt_from,
    frame_stays,
    live,
    order_kept,
)
from tests.compaction.policies.transcripts import PROFILES, Talked, forget_all, tell, transcripts

LIMIT_PERCENTS = (30, 60, 90)
"""The limit of a life, in hundredths of what the whole conversation is."""

NEVER_PLANS = {"full_history"}
"""The baseline: it shows everything, and that is all it does."""

_ITEM = {"provider": "file", "id": "a", "name": "a.py", "content": "a = 1\n" * 40}
EAGER: dict[str, dict[str, Any]] = {
    "position_clear": {"long_chars": 1_000, "keep_turns": 1},
    "stale_read_batching": {"batch_bytes": 4_000},
    "memory_injection": {"memories": ["likes tabs"], "relevant": ["src/a.py is old", "no"]},
    "focus_chain": {"checklist": "- [ ] all of it", "every": 2},
    "context_providers": {"items": [{**_ITEM, "turn": 1}, {**_ITEM, "turn": 2}]},
}
"""Settings under which a policy has something to do in a short life; the others have it as they
are."""

LATE = {"strip_thinking": 12}
"""So many random conversations until it has planned; six are enough for the others."""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "memory_injection": {"memories": ["the user has tea"], "relevant": ["src/a.py is generated"]},
    "context_providers": {
        "items": [
            {"turn": turn, "provider": "file", "id": "a", "name": "a.py", "content": "x = 1"}
            for turn in (1, 2, 4)
        ]
    },
}
"""Of policies that have nothing to do without any."""

EVERY_CHECK = list(HealthCheck)


def lived(policy: Policy, examples: int, *, at_random: bool = False, shrinks: bool = True) -> Depth:
    """How deep *examples* random lives of *policy* under each limit went. Raises Breach."""
    depth: Depth = Counter()
    phases = [Phase.generate, *([Phase.shrink] if shrinks else [])]

    @settings(
        derandomize=not at_random,
        database=None,
        max_examples=examples,
        deadline=None,
        phases=phases,
        suppress_health_check=EVERY_CHECK,
        report_multiple_bugs=False,
    )
    @given(transcripts())
    def lives(talked: Talked) -> None:
        for percent in LIMIT_PERCENTS:
            live(policy, talked, percent, depth)

    lives()
    return depth


def has_planned(name: str, depth: Depth) -> None:
    told = ", ".join(f"{number} {what}" for what, number in depth.items() if number)
    print(f"{name}: {told}")
    if name in NEVER_PLANS:
        assert not depth["plans"]
    else:
        assert depth["plans"] >= 5, f"hardly ever planned: {told}"


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_keeps_the_contract(name: str) -> None:
    examples = LATE.get(name, 6)
    has_planned(name, lived(make_policy(name, EAGER.get(name)), examples))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", policy_names())
def test_a_policy_keeps_the_contract_for_long(name: str) -> None:
    has_planned(name, lived(make_policy(name, EAGER.get(name)), 400, at_random=True))


@pytest.mark.parametrize("name", policy_names())
def test_an_exemption_is_of_a_rule_and_the_docstring_says_why(name: str) -> None:
    policy = make_policy(name)
    assert exempt_from(policy) <= RULES.keys()
    for rule in exempt_from(policy):
        assert rule in (type(policy).__doc__ or "")


# The conversations.


def test_every_random_conversation_is_valid_as_it_stands_and_all_of_it_is_drawn() -> None:
    drawn: Counter[str] = Counter()

    @settings(
        derandomize=True,
        database=None,
        max_examples=40,
        deadline=None,
        suppress_health_check=EVERY_CHECK,
    )
    @given(transcripts())
    def are_valid(talked: Talked) -> None:
        for stop in talked.stops:
            messages = talked.messages[: stop.at]
            if messages[-1].is_assistant:
                continue
            request = project(messages, View(), talked.profile, talked.frame)
            assert check_request(request, talked.profile) == ()
            assert check_against_history(request, messages) == ()
        drawn[talked.kind] += 1
        drawn["open"] += talked.stops[-1].committed < len(talked.messages)
        for message in talked.messages:
            drawn["receipts"] += bool(message.synthetic)
            drawn["no time"] += not message.created_at
            drawn["parallel calls"] += len(message.tool_calls) > 1
            drawn["errors"] += any(result.is_error for result in message.tool_results)
            drawn["steers"] += bool(message.tool_results and message.text)
            drawn["images"] += b'"image"' in bytes(message.body)
            drawn["thinking"] += b"thinking" in bytes(message.body)
            drawn["long"] += len(bytes(message.body)) > 20_000

    are_valid()
    assert set(drawn) > {*PROFILES, "open", "receipts", "errors"}
    assert min(drawn.values()) >= 5, drawn


# Each rule bites.


Does: TypeAlias = Callable[[View, Sequence[Message], Budget], Plan | None]


class Bad(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that is always due and does one thing wrong."""

    name: ClassVar[str] = "bad"
    does: Does
    is_due: Callable[[int, int], bool] = lambda used, limit: True

    def due(self, used_tokens: int, limit_tokens: int) -> bool:
        return self.is_due(used_tokens, limit_tokens)

    def plan(self, view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
        if must_wait(view, messages, budget.profile, budget.committed):
            return None
        return self.does(view, messages, budget)


def changes_a_message(view: View, messages: Sequence[Message], budget: Budget) -> None:
    for message in messages:
        for call in message.tool_calls:
            call.input["path"] = "elsewhere"


numbers = count()


def folds_one_more(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    upto = view.start + 1
    newest = newest_request(messages) or 0
    if upto > newest or messages[upto].tool_results:
        return None
    return a_plan(prefix_summary=PrefixSummary(upto, "short"))


def folds_all(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    if messages[-1].is_assistant or view.start == len(messages) or len(messages) < 3:
        return None
    return a_plan(prefix_summary=PrefixSummary(len(messages), "short"))


def shows_behind_compacted_before(
    view: View, messages: Sequence[Message], budget: Budget
) -> Plan | None:
    results = [result for message in messages for result in message.tool_results]
    return a_plan(shown_results={results[0].tool_use_id: ""}) if results else None


def empties_a_message(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    blocks = range(len(messages[0].content))
    return a_plan(texts={text_key(messages[0], at): "" for at in blocks})


def summarises_the_rest_only(
    view: View, messages: Sequence[Message], budget: Budget
) -> Plan | None:
    newest = newest_request(messages) or 0
    if newest < 2:
        return None
    return a_plan(summary_request=SummaryRequest(first=1, upto=newest, max_tokens=100))


def counts_on_its_summary(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    newest = newest_request(messages) or 0
    if view.omitted or newest == 0 or messages[newest].tool_results:
        return None
    summary_request = SummaryRequest(first=0, upto=newest, max_tokens=100)
    return a_plan(summary_request=summary_request, omitted=((0, newest),))


def summarises_one_more(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    upto = view.start + 1
    newest = newest_request(messages) or 0
    while upto < newest and messages[upto].tool_results:
        upto += 1
    if upto > newest:
        return None
    earlier = view.prefix_summary.text if view.prefix_summary else ""
    return a_plan(
        summary_request=SummaryRequest(first=view.start, upto=upto, max_tokens=100, earlier=earlier)
    )


HALVES: Any = 1.5
BOASTS: Does = lambda *_: a_plan(tokens_before=100_000_000)  # noqa: E731  # a row of a table
BAD: dict[str, tuple[str, Does]] = {
    "changes the view": ("G1", lambda view, *_: view.shown_results.update(c1="gone")),
    "changes a message": ("G1", changes_a_message),
    "counts its calls": ("G2", lambda *_: a_plan(reason=f"plan {next(numbers)}")),
    "goes by the order of a dict": (
        "G2",
        lambda view, messages, budget: a_plan(reason=next(iter(budget.summaries), "")),
    ),
    "folds one more": ("G3", folds_one_more),
    "folds all": ("G5", folds_all),
    "leaves out the first": (
        "G6", lambda view, messages, _: a_plan(omitted=((0, 1),)) if len(messages) > 1 else None,
    ),
    "injects": ("G7", lambda *_: a_plan(injected=(Injected(-1, "a word"),))),
    "boasts": ("G7", BOASTS),
    "shows a stranger": (
        "G9",
        lambda view, messages, _: a_plan(
            shown_results={"stranger": ""}, compacted_before=len(messages)
        ),
    ),
    "shows behind compacted_before": ("G9", shows_behind_compacted_before),
    "empties a message": ("G9", empties_a_message),
    "summarises the rest only": ("G9", summarises_the_rest_only),
    "counts on its summary": ("G10", counts_on_its_summary),
    "summarises one more": ("G11", summarises_one_more),
    "counts in halves": ("G12", lambda *_: a_plan(figures={"halves": HALVES})),
}  # fmt: skip
POLICIES = {sentence: (rule, Bad(does=does)) for sentence, (rule, does) in BAD.items()}
POLICIES["is due with less"] = (
    "G12", Bad(does=lambda *_: None, is_due=lambda used, limit: used < limit),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "policy"), POLICIES.values(), ids=POLICIES)
def test_a_policy_that_breaks_a_rule_is_caught(rule: str, policy: Bad) -> None:
    with pytest.raises(Violation) as caught:
        lived(policy, 30, shrinks=False)
    forget_all()  # one of them has changed a conversation
    assert caught.value.rule == rule


def test_an_exemption_is_honoured_and_the_rule_still_has_an_end() -> None:
    class Exempt(Bad, frozen=True):
        exempt: ClassVar[frozenset[str]] = frozenset({"G7"})

    assert lived(Exempt(does=BOASTS), 5, shrinks=False)["plans"] > 0

    class Endless(Bad, frozen=True):
        exempt: ClassVar[frozenset[str]] = frozenset({"G3", "G7"})

    with pytest.raises(Violation, match="no end"):
        live(Endless(does=injects_once_more), tell("free", 1, [4] * 3, is_open=True), 30, Counter())


def injects_once_more(view: View, messages: Sequence[Message], budget: Budget) -> Plan | None:
    return a_plan(injected=(*view.injected, Injected(0, ".")))


def test_a_request_that_loses_the_system_text_or_an_option_is_caught() -> None:
    talked = tell("manual", 1, [7], is_open=True)
    request = project(talked.messages, View(), talked.profile, talked.frame)
    assert not list(frame_stays(talked, request))
    for broken in (
        replace(request, system="be long"),
        replace(request, system=None),
        replace(request, tools=request.tools[1:]),
        replace(request, options={}),
    ):
        assert [breach.rule for breach in frame_stays(talked, broken)] == ["G4"]


def test_a_request_in_another_order_is_caught() -> None:
    talked = tell("free", 1, [7, 8, 9], is_open=True)
    apart = replace(talked.profile, merges_roles=False)
    request = project(talked.messages, View(), apart, talked.frame)
    assert not list(order_kept(talked.messages, request))
    turned = replace(request, messages=(*request.messages[2:], *request.messages[:2]))
    assert {breach.rule for breach in order_kept(talked.messages, turned)} == {"G8"}
