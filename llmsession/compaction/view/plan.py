"""Plans: what a compaction would change, as a value, before anything is done."""

from __future__ import annotations

import msgspec

from llmsession.turns.records import CompactionApplied, Injected, PrefixSummary, Trigger

__all__ = ["Plan", "SummaryRequest", "plan_of", "record_of"]


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's request for a summary of the messages from position ``first`` to ``upto``.

    ``earlier`` is the summary of the messages before ``first``. The new summary may have at most
    ``max_tokens`` tokens. ``instructions`` are added to the prompt.
    """

    first: int
    upto: int
    max_tokens: int
    earlier: str = ""
    instructions: str = ""
    appendix: str = ""
    """Text to append to the summary, whoever writes it: facts that rules know for certain."""
    fallback: str = ""
    """The policy's own text by rules, without a title. It is used if no summary is written, or none
    that is shorter than its source. Without it the general digest is used.
    """
    omitted: tuple[tuple[int, int], ...] = ()
    """The ranges that are left out only if the summary is written."""
    pinned: Injected | None = None
    """A message before ``upto`` that is repeated verbatim behind the summary. It is injected only
    if the summary is written.
    """


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to show from now on, as changes of the view. Token counts are estimates of the messages.

    A plan with a ``summary_request`` first needs a summary, which then becomes its
    ``prefix_summary``. The other fields are those of the record ``compaction.applied``.
    """

    policy: str
    compacted_before: int
    shown_results: dict[str, str] = {}
    reason: str
    tokens_before: int
    tokens_after: int
    results_summarised: int = 0
    results_redacted: int = 0
    turns_compacted: int = 0
    voids_thinking: bool = True
    """Does an edit make the signed thinking so far invalid (the profile's ``binds_thinking``)?"""
    inputs: dict[str, msgspec.Raw] = {}
    texts: dict[str, str] = {}
    prefix_summary: PrefixSummary | None = None
    omitted: tuple[tuple[int, int], ...] = ()
    injected: tuple[Injected, ...] | None = None
    """All texts to inject from now on; None leaves them unchanged."""
    drops_thinking: bool = False
    """Leave out all thinking made so far, to make the request smaller."""
    trigger: Trigger = "threshold"
    figures: dict[str, int] = {}
    summary_request: SummaryRequest | None = None


_SHARED = tuple(
    name
    for name in Plan.__struct_fields__
    if name in CompactionApplied.__struct_fields__ and name != "injected"
)


def plan_of(record: CompactionApplied) -> Plan:
    """The plan that *record* says was applied."""
    fields = {name: getattr(record, name) for name in _SHARED}
    return Plan(**fields, injected=record.injected if record.sets_injected else None)


def record_of(plan: Plan) -> CompactionApplied:
    """The record that says that *plan* was applied."""
    fields = {name: getattr(plan, name) for name in _SHARED}
    injected = plan.injected
    return CompactionApplied(**fields, injected=injected or (), sets_injected=injected is not None)
