"""Every event that is logged: its level and fields, read from the calls that log it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from docs.tables.markdown import table

__all__ = ["MEANINGS", "logged", "overview"]

PACKAGE = Path(__file__).resolve().parents[2] / "llmsession"
MEANINGS: Mapping[str, str] = {
    "actor.crashed": "A bug ended the session's actor. The session can be opened again.",
    "clock.failed": "The clock that was given to the manager failed; the system's clock is used.",
    "cluster.follow_failed": "A bug kept the hosts from being read; it is tried again.",
    "cluster.directory_unreachable": "The hosts' rows could not be read or written; tried again.",
    "cluster.host_adopted": "A keeper found a host that an earlier keeper had started.",
    "cluster.host_dead": "A host was declared dead. Its sessions can be taken at once.",
    "cluster.host_ended": "The process of a host that a keeper started has ended, and how.",
    "cluster.host_gone": "A host was removed: its lease ran out.",
    "cluster.host_replaced": "Another process joined under the name of this host.",
    "cluster.host_started": "A keeper started a host, which has not joined yet.",
    "cluster.keeper_silent": "The keeper of a machine is dead, or slow to answer; asked again.",
    "cluster.not_reconciled": "The supervisor could not start or stop hosts; it tries again.",
    "cluster.ray_setting_missing": "Ray was started without a setting that hosts need.",
    "command.crashed": "A bug ended a command of a client.",
    "command.failed": "A command of a client failed.",
    "command.refused": "A command of a client was refused.",
    "compaction.applied": "The context was compacted: tokens before and after, and why now.",
    "compaction.discarded": "A compaction was not applied, because the conversation had changed.",
    "compaction.failed": "A policy failed; the context stays as it is.",
    "connection.crashed": "A bug ended a connection.",
    "connection.not_accepted": "The system could not accept a connection.",
    "connection.refused": "A client was refused: its token, a limit, or the protocol.",
    "context.edited": "The provider cleared tokens of the context itself.",
    "counter.failed": "A token counter failed; an estimate is used.",
    "lease.failed": "The store's code for leases raised an error; its leases are not used.",
    "lease.lost": "The lease could not be renewed: no request and no tool begins.",
    "lease.renewed": "The lease is valid again; work goes on.",
    "provider.crashed": "The provider's code raised an unexpected error.",
    "provider.failed": "A request to the model failed; the turn retries, or fails.",
    "replay.left_out": "Parts of a recording that the replay does not have, counted by reason.",
    "reply.stray_results": "A reply had results that belong to no call; they were left out.",
    "request.invalid": "A request broke validity rules and was not sent.",
    "request.unbuildable": "A request could not be built.",
    "retention.applied": "A pass of retention over the store has ended.",
    "retention.deleted": "Retention deleted the session.",
    "retention.failed": "A pass of retention failed; the next one tries again.",
    "retention.forgot": "Retention forgot the oldest turns of the session.",
    "secret.readable_by_others": "A file of secrets can be read by other users.",
    "service.draining": "The service stops: open turns may end.",
    "service.left_open": "The service stopped with open turns; the next start recovers them.",
    "service.started": "The service listens.",
    "service.stopped": "The service has stopped.",
    "session.given_up": "The owner lost the session, or its store failed.",
    "session.not_handed_over": "A session could not be handed over to another host.",
    "session.not_recovered": "A session with an unfinished turn could not be opened.",
    "session.not_released": "The lease of a session could not be given back; it is tried again.",
    "sessions.not_recovered": "The search for unfinished turns failed.",
    "sessions.recovered": "Sessions with unfinished turns were opened.",
    "snapshot.ignored": "A session's snapshot could not be used, and its whole log was folded.",
    "snapshot.not_saved": "A snapshot could not be saved; the session goes on without it.",
    "step.retried": "A step is asked for again after a delay.",
    "summary.failed": "A model's summary failed; rules extract one.",
    "summary.refused": "The request for a summary was refused as invalid.",
    "threads.left": "The manager ended while threads of tools still ran.",
    "tls.not_reloaded": "The certificate files could not be read again; the old ones stay.",
    "tls.reloaded": "The certificate files were read again.",
    "tokens.not_reloaded": "The token file could not be read again; the old tokens stay.",
    "tokens.reloaded": "The token file was read again; some clients were disconnected.",
    "tool.expired": "A tool call reached its deadline.",
    "tools.started": "Calls of tools begin.",
    "tools.unbound": "The session ran tools itself that no callable is bound to now.",
    "turn.accepted": "A message was accepted.",
    "turn.ended": "A turn ended.",
    "turn.moved": "A turn changed its phase.",
    "work.crashed": "A bug ended a background work of the manager.",
    "work.ignores_cancellation": "A tool or a stream goes on after it was cancelled.",
}
"""What each event says; the level and the fields are read from the code."""
_LEVELS = {
    "event": "info", "info": "info",
    "trouble": "warning", "log_trouble": "warning", "warning": "warning", "add": "warning",
    "_log_command": "warning", "_log_trouble": "warning",
    "bug": "error", "log_bug": "error", "error": "error",
}  # fmt: skip
"""A function that logs -> the level."""
_NAME = re.compile(r"[a-z_]+\.[a-z_]+")


class LoggedEvent(NamedTuple):
    level: str
    fields: tuple[str, ...]


@cache
def logged() -> dict[str, LoggedEvent]:
    """The events of the package by name."""
    found: dict[str, LoggedEvent] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if re.search(rf"[.\b]({'|'.join(_LEVELS)})\(|\.bug,", source) and _NAME.search(source):
            for name, level, fields in _calls(ast.parse(source)):
                before = found.get(name, LoggedEvent(level, ()))
                found[name] = LoggedEvent(level, tuple(dict.fromkeys(before.fields + fields)))
    return found


def _calls(tree: ast.AST) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        # ``partial(log.bug, "name")`` logs as the function in it does.
        functions = [_last_name(part) for part in (node.func, *node.args)]
        level = next((_LEVELS[name] for name in functions if name in _LEVELS), None)
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        for name in names:
            if level and isinstance(name, str) and _NAME.fullmatch(name):
                yield name, level, tuple(word.arg for word in node.keywords if word.arg)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def overview() -> str:
    """All events that are logged, by name."""
    rows = []
    for name, event in sorted(logged().items()):
        fields = ", ".join(f"`{field}`" for field in event.fields if field != "exc_info")
        rows.append((f"`{name}`", event.level, fields, MEANINGS[name]))
    return table(("event", "level", "fields", "meaning"), rows)
