"""The contract of a policy, G1 to G12, as checks of what a plan does to a conversation.

``live`` takes a policy through a conversation: at each of its stops it is asked whether it is
due, and for a plan if it is; the plan is filled, applied and looked at, and the next stop sees
the view it left. What is broken is told as a ``Violation``; rules that the policy declares itself
exempt from are not asked.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from llmsession.compaction.planning.boundaries import newest_request
from llmsession.compaction.planning.policy import Budget, Policy
from llmsession.compaction.planning.prefix_summaries import (
    extracted_summary,
    with_summary,
    without_title,
)
from llmsession.compaction.policies import Balanced
from llmsession.compaction.tokens.messages import frame_tokens
from llmsession.compaction.view.plan import Plan, SummaryRequest
from llmsession.compaction.view.view import View, text_key
from llmsession.turns.blocks import TextBlock, is_thinking
from llmsession.turns.messages import Message
from llmsession.turns.records import PrefixSummary, Trigger
from llmsession.turns.request import Request
from tests.compaction.policies.moments import (
    Eyes,
    Moment,
    again_under,
    asking,
    moment_of,
    with_trigger,
)
from tests.compaction.policies.transcripts import Talked, contents_of

__all__ = [
    "RULES",
    "Depth",
    "Violation",
    "check_values",
    "exempt_from",
    "frame_stays",
    "live",
    "order_kept",
]

RULES = {
    "G1": "what goes in is not changed",
    "G2": "equal inputs give equal plans",
    "G3": "applied twice is applied once",
    "G4": "the system text, the tools and the options stay",
    "G5": "the user's newest words are shown",
    "G6": "the request is valid, also after an abort or a rewind",
    "G7": "the context gets no larger, and what a plan says that it frees is freed",
    "G8": "what is shown stands in its old order",
    "G9": "a message is shown, masked, folded or left out, and a plan says which",
    "G10": "a summary that fails is as if it had not been asked for",
    "G11": "without new messages no second summary is asked for",
    "G12": "decisions are whole numbers, and more is never less due",
}
"""The global invariants of the catalogue, as a plan can keep them."""

RESCUED_BELOW_PERCENT = 50
"""Under a tighter limit than this the session's last means act between two plans."""

SETTLES_WITHIN = 20
"""Plans, one after the other without new messages, of a policy that is exempt from G3."""

Depth: TypeAlias = "Counter[str]"


class Violation(AssertionError):
    """A rule that a policy has broken."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(f"{rule} ({RULES[rule]}): {what}")
        self.rule = rule


def exempt_from(policy: object) -> frozenset[str]:
    """The rules that *policy* declares itself exempt from."""
    return frozenset(getattr(policy, "exempt", frozenset()))


def live(policy: Policy, talked: Talked, limit_percent: int, depth: Depth) -> None:
    """Take *policy* through *talked* with a limit of so many percent of the whole; *depth*
    counts what happened. Raises Breach."""
    whole = Budget(used_tokens=0, limit_tokens=0, profile=talked.profile, committed=0)
    frame = frame_tokens(talked.frame, talked.profile)
    limit = max(200, (frame + whole.size(talked.messages, View())) * limit_percent // 100)
    exempt = exempt_from(policy)
    eyes = Eyes(talked)
    view = View(capped=dict(talked.capped))
    for stop in talked.stops:
        messages = talked.messages[: stop.at]
        depth["asked"] += 1
        moment = moment_of(
            eyes,
            talked,
            messages,
            view,
            Budget(
                used_tokens=0,
                limit_tokens=limit,
                summaries=talked.summaries,
                profile=talked.profile,
                committed=stop.committed,
                frame_tokens=frame,
                # An odd scale, so that a policy that mixes estimates and used tokens is noticed.
                scale_permille=1_000 if talked.scale == 1 else 1_150,
            ),
        )
        _heed(_due_is_whole(policy, moment), exempt)
        trigger = _trigger(policy, moment)
        if trigger is None:
            continue
        depth["due"] += trigger == "threshold"
        moment = with_trigger(moment, trigger)
        plan = _planned(policy, moment, exempt)
        if plan is None:
            continue
        _count(depth, plan, view)
        filled = _filled(plan, moment)
        after = _applied(filled, moment)
        _heed(_breaches(moment, plan, filled, after), exempt)
        view = _settled(policy, moment, after, exempt)
        if limit_percent < RESCUED_BELOW_PERCENT:
            view = _rescued(again_under(moment, view), depth)
    if contents_of(talked.messages) != talked.contents and "G1" not in exempt:
        raise Violation("G1", "the content of a message is another one")


def _heed(breaches: Iterator[Violation], exempt: frozenset[str]) -> None:
    for breach in breaches:
        if breach.rule not in exempt:
            raise breach


def _trigger(policy: Policy, moment: Moment) -> Trigger | None:
    """Why a plan is asked for here: it is due, the request does not fit, or somebody asks."""
    budget = moment.budget
    fits = budget.used_tokens <= budget.limit_tokens
    if not fits and len(moment.messages) % 2:
        return "window" if len(moment.messages) % 4 == 1 else "overflow"
    if policy.due(budget.used_tokens, budget.limit_tokens):
        return "threshold"
    return "asked" if len(moment.messages) % 3 == 0 else None


def _due_is_whole(policy: Policy, moment: Moment) -> Iterator[Violation]:
    used, limit = moment.budget.used_tokens, moment.budget.limit_tokens
    answers = [policy.due(at, limit) for at in (used // 2, used, used + 1, 3 * used)]
    if not all(type(answer) is bool for answer in answers) or answers != sorted(answers):
        yield Violation("G12", f"due from {used // 2} to {3 * used} of {limit} is {answers}")


def _planned(policy: Policy, moment: Moment, exempt: frozenset[str]) -> Plan | None:
    view, budget = msgspec.msgpack.encode(moment.view), msgspec.msgpack.encode(moment.budget)
    settings = copy.deepcopy(_fields(policy))
    plan = policy.plan(moment.view, moment.messages, moment.budget)
    told = msgspec.msgpack.encode(plan)
    same_settings = settings == _fields(policy)
    kept = (view, budget) == (
        msgspec.msgpack.encode(moment.view), msgspec.msgpack.encode(moment.budget)
    )  # fmt: skip
    if not (kept and same_settings) and "G1" not in exempt:
        raise Violation("G1", "the view, the budget or the policy is another one")
    # New objects, and dicts in another order: nothing of an earlier call, and no address, counts.
    budget_again = msgspec.structs.replace(
        moment.budget, summaries=dict(reversed(list(moment.budget.summaries.items())))
    )
    fresh: Sequence[Message] = moment.messages
    if not moment.view.version:
        fresh = [msgspec.structs.replace(message) for message in moment.messages]
    again = type(policy)(**_fields(policy)).plan(moment.view, fresh, budget_again)
    if msgspec.msgpack.encode(again) != told and "G2" not in exempt:
        raise Violation("G2", f"first {plan}, then {again}")
    return plan


def _fields(policy: Any) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in policy.__struct_fields__}


def _count(depth: Depth, plan: Plan, view: View) -> None:
    depth["plans"] += 1
    depth["again"] += bool(view.version)
    depth["summary_request"] += plan.summary_request is not None
    depth["omitted"] += bool(plan.omitted)
    depth["masked"] += bool(plan.shown_results or plan.inputs or plan.texts)
    depth["injected"] += plan.injected is not None


def _filled(plan: Plan, moment: Moment) -> Plan | None:
    if plan.summary_request is None:
        return plan
    prefix_summary = extracted_summary(plan.summary_request, moment.messages, moment.talked.profile)
    return with_summary(plan, prefix_summary, moment.view, moment.messages, moment.budget)


def _applied(filled: Plan | None, moment: Moment) -> View:
    return moment.view.applied(filled, len(moment.messages)) if filled else moment.view


def _breaches(moment: Moment, plan: Plan, filled: Plan | None, after: View) -> Iterator[Violation]:
    yield from check_values(plan)
    yield from _says_what_becomes(plan, moment, after)
    yield from _summary_covers_all(plan, moment)
    yield from _summary_may_fail(plan, moment)
    yield from _frees_what_it_says(filled, moment, after)
    yield from _request_is_right(moment, after)
    yield from _can_be_rewound(moment, after)


# G12.


def check_values(plan: Plan) -> Iterator[Violation]:
    """What in *plan* is a number and no whole one."""
    numbers: list[Any] = [
        plan.compacted_before, plan.tokens_before, plan.tokens_after, plan.results_summarised,
        plan.results_redacted, plan.turns_compacted, *plan.figures.values(),
        *(end for each in plan.omitted for end in each),
        *(each.at for each in plan.injected or ()),
    ]  # fmt: skip
    if plan.summary_request is not None:
        numbers += [
            plan.summary_request.first,
            plan.summary_request.upto,
            plan.summary_request.max_tokens,
        ]
    wrong = [number for number in numbers if type(number) is not int]
    if wrong:
        yield Violation("G12", f"not whole: {wrong}")


# G9.


def _says_what_becomes(plan: Plan, moment: Moment, after: View) -> Iterator[Violation]:
    messages = moment.messages
    count = len(messages)
    compacted_before = max(plan.compacted_before, moment.view.compacted_before)
    results = {
        result.tool_use_id
        for message in messages[:compacted_before]
        for result in message.tool_results
    }
    calls = {call.id for message in messages for call in message.tool_calls}
    texts = {
        text_key(message, at)
        for message in messages
        for at, block in enumerate(message.content)
        if isinstance(block, TextBlock)
    }
    strangers = [*(plan.shown_results.keys() - results), *(plan.inputs.keys() - calls)]
    strangers += plan.texts.keys() - texts
    if strangers:
        yield Violation(
            "G9", f"masks what is not there, or not before {compacted_before}: {strangers[:3]}"
        )
    if not 0 <= plan.compacted_before <= count:
        yield Violation("G9", f"the frontier {plan.compacted_before} of {count} messages")
    if wrong := [each for each in plan.omitted if not 0 <= each[0] < each[1] <= count]:
        yield Violation("G9", f"leaves out {wrong} of {count} messages")
    if places := [each.at for each in plan.injected or () if not -1 <= each.at <= count]:
        yield Violation("G9", f"injects at {places} of {count} messages")
    prefix_summary = plan.prefix_summary
    if prefix_summary is not None and not 0 < prefix_summary.upto <= count:
        yield Violation("G9", f"folds {prefix_summary.upto} of {count} messages")
    yield from _nothing_vanishes(moment, after)


def _nothing_vanishes(moment: Moment, after: View) -> Iterator[Violation]:
    """A message that nothing is left of has to be left out by the plan's own word."""
    messages = moment.messages
    sent = len(moment.eyes.apart(messages, after).messages)
    notes = {max(each.at, after.start) for each in after.injected if each.at >= 0}
    shown = [at for at in range(len(messages)) if after.shows(at) and _has_words(messages[at])]
    most = sent - len(notes) - (after.prefix_summary is not None)
    if most < len(shown):
        yield Violation("G9", f"{len(shown)} messages are shown, but {most} are sent")


def _has_words(message: Message) -> bool:
    return any(
        bool(block.text.strip()) if isinstance(block, TextBlock) else not is_thinking(block)
        for block in message.content
    )


def _summary_covers_all(plan: Plan, moment: Moment) -> Iterator[Violation]:
    summary_request, view = plan.summary_request, moment.view
    if summary_request is None:
        return
    if not view.start < summary_request.upto <= len(moment.messages):
        yield Violation(
            "G9", f"wants a summary up to {summary_request.upto}, one up to {view.start} stands"
        )
    if summary_request.first > view.start and any(
        map(view.shows, range(view.start, summary_request.first))
    ):
        yield Violation("G9", f"no summary has {view.start} to {summary_request.first}")
    told = without_title(view.prefix_summary.text) if view.prefix_summary else ""
    if view.start and summary_request.first and told not in summary_request.earlier:
        yield Violation("G9", "the summary so far is not folded into the next")


# G10.


def _failures(
    summary_request: SummaryRequest, source_tokens: int
) -> Iterator[PrefixSummary | None]:
    """No summary, blank ones, and one as long as what it stands for."""
    yield None
    yield PrefixSummary(summary_request.upto, "")
    yield PrefixSummary(summary_request.upto, " \n")
    yield PrefixSummary(summary_request.upto, "word " * (source_tokens + 1))


def _summary_may_fail(plan: Plan, moment: Moment) -> Iterator[Violation]:
    summary_request = plan.summary_request
    if summary_request is None:
        return
    views: list[View] = []
    source_tokens = moment.budget.size(moment.messages[: summary_request.upto], moment.view)
    for failure in _failures(summary_request, source_tokens):
        left = with_summary(plan, failure, moment.view, moment.messages, moment.budget)
        view = moment.view if left is None else moment.view.applied(left, len(moment.messages))
        if (
            left is not None
            and left.prefix_summary is not None
            and summary_request.fallback.strip()
        ):
            # The next fallback: a text by rules, which the policy has itself.
            if summary_request.fallback.strip() not in left.prefix_summary.text:
                yield Violation("G10", "neither a summary nor the policy's own text stands there")
            yield from _request_is_right(moment, view)
            continue
        if view.prefix_summaries != moment.view.prefix_summaries:
            yield Violation("G10", "a summary that failed stands for messages")
        lost = [
            at for at in range(summary_request.upto) if moment.view.shows(at) and not view.shows(at)
        ]
        if lost:
            yield Violation("G10", f"no summary, and {lost[:5]} are left out all the same")
        if view not in views:
            views.append(view)
            yield from _request_is_right(moment, view)


# G7.


def _frees_what_it_says(filled: Plan | None, moment: Moment, after: View) -> Iterator[Violation]:
    if filled is None:
        return
    size = moment.budget.size
    before = moment.budget.used_tokens - moment.budget.frame_tokens
    now = size(moment.messages, after)
    if now > before:
        yield Violation("G7", f"{before} tokens became {now}")
    says = filled.tokens_before - filled.tokens_after
    # An estimate of an estimate may be off by a little.
    if says > (before - now) + 64 + before // 20:
        yield Violation("G7", f"says that it frees {says} tokens, frees {before - now}")


# G4, G5, G6, G8.


def _request_is_right(moment: Moment, view: View) -> Iterator[Violation]:
    messages = asking(moment.messages)
    request = moment.eyes.sent(messages, view)
    yield from frame_stays(moment.talked, request)
    yield from _is_valid(moment, request, messages, view)
    yield from _newest_words_shown(moment, view, request)
    yield from order_kept(moment.messages, moment.eyes.apart(moment.messages, view))


def frame_stays(talked: Talked, request: Request) -> Iterator[Violation]:
    """Has *request* the system text, at most with something behind it, the tools, the options?"""
    frame, system = talked.frame, request.system or ""
    head = system == frame.system or system.startswith(f"{frame.system}\n\n")
    if not head or (request.tools, request.options) != (frame.tools, frame.options):
        yield Violation("G4", f"the system text is {system[:80]!r}")


def _is_valid(
    moment: Moment, request: Request, messages: Sequence[Message], view: View
) -> Iterator[Violation]:
    violations = moment.eyes.violations(request, messages, view)
    if violations:
        first = violations[0]
        more = f" ({len(violations)} in all)" if len(violations) > 1 else ""
        yield Violation("G6", f"{first.rule} at {first.where}: {first.text}{more}")


def _newest_words_shown(moment: Moment, view: View, request: Request) -> Iterator[Violation]:
    at = newest_request(moment.messages)
    if at is None or view.shows(at) or not moment.view.shows(at):
        return
    said = msgspec.json.encode(moment.messages[at].text)[1:-1]
    if not any(said in bytes(message.body) for message in request.messages):
        yield Violation("G5", f"message {at} of {len(moment.messages)} is not shown")


def order_kept(messages: Sequence[Message], request: Request) -> Iterator[Violation]:
    """Does *request*, whose neighbours of one role are apart, have *messages* in their order?"""
    bodies = {id(message.body): at for at, message in enumerate(messages)}
    calls = {call.id: at for at, message in enumerate(messages) for call in message.tool_calls}
    results = {
        result.tool_use_id: at
        for at, message in enumerate(messages)
        for result in message.tool_results
    }
    last = -1
    for part in request.messages:
        at = bodies.get(id(part.body))
        if at is None:
            for block in msgspec.json.decode(part.body):
                known = calls.get(block.get("id", "")), results.get(block.get("tool_use_id", ""))
                at = next((place for place in known if place is not None), at)
        if at is None:
            continue
        if at <= last:
            yield Violation("G8", f"message {at} stands behind message {last}")
        last = at


def _can_be_rewound(moment: Moment, after: View) -> Iterator[Violation]:
    """The open turn may be aborted, and the history cut at any turn's end."""
    messages = moment.messages
    ends = [at for at in range(1, len(messages)) if messages[at].turn != messages[at - 1].turn]
    for cut in {moment.budget.committed, *ends[len(ends) // 2 :][:1]}:
        if cut == len(messages):
            continue
        view = after.clamped(cut)
        rest = asking(messages[:cut], new_turn=True)
        for breach in _is_valid(moment, moment.eyes.sent(rest, view), rest, view):
            # A turn that was stopped within its tool loop is open again, and its thinking is
            # void since a plan that was made when it was not: no policy can foresee that.
            if "V8" not in str(breach):
                yield Violation("G6", f"after a cut to {cut}: {breach}")


# G3, G11.


def _settled(policy: Policy, moment: Moment, after: View, exempt: frozenset[str]) -> View:
    """*after*, looked at once more without new messages: nothing may change any more. A policy
    that is exempt from that goes on until it does not, and never grows what is shown."""
    for number in range(SETTLES_WITHIN):
        again = again_under(moment, after)
        if not _asks_again(policy, again):
            return after
        plan = policy.plan(after, moment.messages, again.budget)
        if plan is None:
            return after
        if plan.summary_request is not None and "G11" not in exempt:
            raise Violation("G11", f"a summary up to {plan.summary_request.upto} is wanted, too")
        filled = _filled(plan, again)
        view = _applied(filled, again)
        messages, sent = moment.messages, moment.eyes.sent
        if view == after or sent(messages, view).encode() == sent(messages, after).encode():
            return after
        if "G3" not in exempt:
            raise Violation("G3", f"plan {number + 2} of the same: {plan.reason}")
        _heed(_breaches(again, plan, filled, view), exempt)
        after = view
    raise Violation("G3", f"{SETTLES_WITHIN} plans without new messages, and no end")


def _rescued(moment: Moment, depth: Depth) -> View:
    """The view after what the session does where a request still does not fit: the hardest means
    there are. So the next plan of the policy meets a view that is not its own work."""
    budget = moment.budget
    if budget.used_tokens <= budget.limit_tokens:
        return moment.view
    moment = with_trigger(moment, "window")
    plan = Balanced().plan(moment.view, moment.messages, moment.budget)
    depth["rescued"] += plan is not None
    return moment.view if plan is None else _applied(_filled(plan, moment), moment)


def _asks_again(policy: Policy, moment: Moment) -> bool:
    budget = moment.budget
    if budget.trigger in ("window", "overflow"):
        return budget.used_tokens > budget.limit_tokens
    return budget.trigger == "asked" or policy.due(budget.used_tokens, budget.limit_tokens)
