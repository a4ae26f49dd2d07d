"""Reserved labels: the session sets them, and users cannot change them directly."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from llmsession.errors import InvalidInput, refusing

__all__ = [
    "ARCHIVED_LABEL",
    "MAX_AGE_LABEL",
    "MAX_LABEL_CHARS",
    "MAX_TITLE_CHARS",
    "RESERVED",
    "TENANT_LABEL",
    "TITLE_LABEL",
    "checked_tenant",
    "labelled",
    "max_age_of",
    "namespace_of",
    "new_session_id",
    "of_fork",
    "reserved_labels",
    "tenant_of",
    "title_from",
    "with_max_age",
    "with_tenant",
]

MAX_LABEL_CHARS = 256
"""Labels are part of every row of a list. They identify a session and are not meant for content."""
RESERVED = "llmsession."
"""The prefix of all reserved label names."""
TENANT_LABEL = f"{RESERVED}tenant"
TITLE_LABEL = f"{RESERVED}title"
"""The title that ``LLMSession.label`` set. A session without one has the title of its import, or
the beginning of its first request.
"""
ARCHIVED_LABEL = f"{RESERVED}archived"
"""A session with this label is left out of lists, unless archived sessions are asked for."""
MAX_TITLE_CHARS = 200
DERIVED_TITLE_CHARS = 60
"""The length of a title that is made from the beginning of a request."""
MAX_AGE_LABEL = f"{RESERVED}max_age_s"
"""The age limit of the session's own configuration. With it the manager's schedule finds such
sessions without reading their logs.
"""


def reserved_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The reserved ones of *labels*."""
    return {name: value for name, value in labels.items() if name.startswith(RESERVED)}


def tenant_of(labels: Mapping[str, str]) -> str | None:
    """The tenant that a session with *labels* belongs to; None if it has none."""
    return labels.get(TENANT_LABEL)


def with_tenant(labels: dict[str, str], tenant: str | None) -> dict[str, str]:
    """*labels* plus the label of *tenant*."""
    return labels if tenant is None else {**labels, TENANT_LABEL: tenant}


def labelled(
    labels: Mapping[str, str],
    own: Mapping[str, str] | None,
    title: str | None,
    archived: bool | None,
) -> dict[str, str]:
    """*labels* of a session after ``LLMSession.label(own, title=title, archived=archived)``.

    *own* replaces the labels that are not reserved. A *title* of "" removes the title. None changes
    nothing.
    """
    reserved = reserved_labels(labels)
    if own is None:
        own = {name: value for name, value in labels.items() if name not in reserved}
    if title is not None:
        reserved[TITLE_LABEL] = title
    if archived is not None:
        reserved[ARCHIVED_LABEL] = "yes" if archived else ""
    return {**own, **{name: value for name, value in reserved.items() if value}}


def of_fork(labels: Mapping[str, str], own: Mapping[str, str] | None) -> dict[str, str]:
    """The labels of a fork of a session with *labels*.

    They are the same labels, or *own* in place of those that are not reserved. A fork with labels
    of its own does not inherit the title. No fork is archived.
    """
    kept = labels if own is None else {**own, **reserved_labels(labels)}
    gone = (ARCHIVED_LABEL,) if own is None else (ARCHIVED_LABEL, TITLE_LABEL)
    return {name: value for name, value in kept.items() if name not in gone}


def title_from(text: str) -> str:
    """*text* as a title: on one line, and cut between words if it is too long."""
    words = " ".join(text.split())
    if len(words) <= DERIVED_TITLE_CHARS:
        return words
    cut = words[:DERIVED_TITLE_CHARS].rsplit(" ", 1)[0]
    return cut[: DERIVED_TITLE_CHARS - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def max_age_of(labels: Mapping[str, str]) -> float | None:
    """How old messages of a session with *labels* may become, in seconds; None if at any age."""
    try:
        return float(labels[MAX_AGE_LABEL])
    except (KeyError, ValueError):
        return None


def with_max_age(labels: Mapping[str, str], max_age_s: float | None) -> dict[str, str]:
    """*labels* with the age limit *max_age_s*; None removes it."""
    others = {name: value for name, value in labels.items() if name != MAX_AGE_LABEL}
    return others if max_age_s is None else {**others, MAX_AGE_LABEL: repr(float(max_age_s))}


def namespace_of(tenant: str) -> str:
    """The prefix of the ids of *tenant*'s sessions at a service: its name and a slash.

    A slash or percent sign in the name is escaped, so that no two tenants share a prefix.
    """
    return tenant.replace("%", "%25").replace("/", "%2F") + "/"


def new_session_id(tenant: str | None) -> str:
    """A random session id, in the namespace of *tenant* if it is not None."""
    return (namespace_of(tenant) if tenant is not None else "") + uuid.uuid4().hex


@refusing
def checked_tenant(tenant: Any) -> str:
    """*tenant* as a plain ``str``. Raises InvalidInput for an invalid name."""
    tenant = str.__str__(tenant) if isinstance(tenant, str) else tenant
    if not isinstance(tenant, str) or not tenant.isprintable():
        raise InvalidInput(f"tenant {tenant!r} is not a printable text")
    if not 0 < len(tenant) <= MAX_LABEL_CHARS:
        rule = f"has {len(tenant)} characters; it must have 1 to {MAX_LABEL_CHARS}"
        raise InvalidInput(f"tenant {tenant[:MAX_LABEL_CHARS]!r} {rule}")
    return tenant
