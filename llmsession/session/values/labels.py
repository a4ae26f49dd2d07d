"""Reserved labels: a session gets them when it is created, and users cannot change them."""

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
"""Labels are part of every row of a list: they name a session, and do not hold content."""
RESERVED = "llmsession."
"""What the names of reserved labels begin with."""
TENANT_LABEL = f"{RESERVED}tenant"
TITLE_LABEL = f"{RESERVED}title"
"""The title that somebody gave the session; without one it has that of its import, or the beginning
of its first request."""
ARCHIVED_LABEL = f"{RESERVED}archived"
"""A session that has it is not listed, unless archived ones are asked for."""
MAX_TITLE_CHARS = 200
DERIVED_TITLE_CHARS = 60
"""Of a title that is the beginning of a request."""
MAX_AGE_LABEL = f"{RESERVED}max_age_s"
"""How old the messages of a session may become by its own configuration: the manager's schedule
finds such sessions by it, without reading their logs."""


def reserved_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Those of *labels* that are reserved."""
    return {name: value for name, value in labels.items() if name.startswith(RESERVED)}


def tenant_of(labels: Mapping[str, str]) -> str | None:
    """The tenant that a session with *labels* belongs to."""
    return labels.get(TENANT_LABEL)


def with_tenant(labels: dict[str, str], tenant: str | None) -> dict[str, str]:
    """*labels* of a session that belongs to *tenant*."""
    return labels if tenant is None else {**labels, TENANT_LABEL: tenant}


def labelled(
    labels: Mapping[str, str],
    own: Mapping[str, str] | None,
    title: str | None,
    archived: bool | None,
) -> dict[str, str]:
    """*labels* of a session after it was given the labels *own* in place of those that are not
    reserved, a *title* ("": none), and was *archived* or is not any more. None changes nothing."""
    reserved = reserved_labels(labels)
    if own is None:
        own = {name: value for name, value in labels.items() if name not in reserved}
    if title is not None:
        reserved[TITLE_LABEL] = title
    if archived is not None:
        reserved[ARCHIVED_LABEL] = "yes" if archived else ""
    return {**own, **{name: value for name, value in reserved.items() if value}}


def of_fork(labels: Mapping[str, str], own: Mapping[str, str] | None) -> dict[str, str]:
    """The labels of a fork of a session with *labels*: the same, or *own* in place of those that
    are not reserved. Such a fork has no title of its parent's; no fork is archived."""
    kept = labels if own is None else {**own, **reserved_labels(labels)}
    gone = (ARCHIVED_LABEL,) if own is None else (ARCHIVED_LABEL, TITLE_LABEL)
    return {name: value for name, value in kept.items() if name not in gone}


def title_from(text: str) -> str:
    """*text* as a title: on one line, and cut at a word if it is too long."""
    words = " ".join(text.split())
    if len(words) <= DERIVED_TITLE_CHARS:
        return words
    cut = words[:DERIVED_TITLE_CHARS].rsplit(" ", 1)[0]
    return cut[: DERIVED_TITLE_CHARS - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"


def max_age_of(labels: Mapping[str, str]) -> float | None:
    """How many seconds old messages of a session with *labels* may become; None: any."""
    try:
        return float(labels[MAX_AGE_LABEL])
    except (KeyError, ValueError):
        return None


def with_max_age(labels: Mapping[str, str], max_age_s: float | None) -> dict[str, str]:
    """*labels* of a session whose messages may become *max_age_s* old; None: of any age."""
    others = {name: value for name, value in labels.items() if name != MAX_AGE_LABEL}
    return others if max_age_s is None else {**others, MAX_AGE_LABEL: repr(float(max_age_s))}


def namespace_of(tenant: str) -> str:
    """What the ids of *tenant*'s sessions at a service begin with, and no other tenant's: its name
    and a slash. A slash in the name is escaped, and so is the escape character."""
    return tenant.replace("%", "%25").replace("/", "%2F") + "/"


def new_session_id(tenant: str | None) -> str:
    """A random id for a session, in the namespace of its *tenant*."""
    return (namespace_of(tenant) if tenant is not None else "") + uuid.uuid4().hex


@refusing
def checked_tenant(tenant: Any) -> str:
    """*tenant*, as a plain text. Raises InvalidInput for an invalid name."""
    tenant = str.__str__(tenant) if isinstance(tenant, str) else tenant
    if not isinstance(tenant, str) or not tenant.isprintable():
        raise InvalidInput(f"tenant {tenant!r} is no printable text")
    if not 0 < len(tenant) <= MAX_LABEL_CHARS:
        rule = f"has {len(tenant)} characters, not 1 to {MAX_LABEL_CHARS}"
        raise InvalidInput(f"tenant {tenant[:MAX_LABEL_CHARS]!r} {rule}")
    return tenant
