"""SessionManager: the sessions of one process, live and cold."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, cast, get_args

import anyio

from llmsession.errors import (
    InvalidConfig,
    SessionError,
    SessionExists,
    SessionNotFound,
    ToolsUnbound,
)
from llmsession.providers.protocol import Provider
from llmsession.store.protocol import EVERYTHING, SessionFilter, SessionRow, Store
from llmsession.transcripts import Conversation
from llmsession.turns import records as r
from llmsession.turns.spending.prices import Price
from llmsession.turns.spending.spending import Spending, SpendingBudget

from .core.observers import SessionObserver
from .handles.session import LLMSession
from .log.read_state import begun_rows, was_created_by, with_command
from .operations.export import conversation_of
from .operations.import_sessions import ConfigFor, import_many, import_one
from .operations.listing import with_archived, with_titles
from .operations.retention import RetentionSchedule, apply_retention, checked_interval
from .operations.search import SearchPage, search_sessions
from .registry.runtime import Runtime
from .values.config import Recovery, SessionConfig, Tool, Unbound, tools_with_callables
from .values.labels import checked_tenant, new_session_id, with_max_age, with_tenant
from .values.outcome import Closed
from .values.retention import Retention, RetentionReport
from .values.validation import (
    checked_choice,
    checked_filter,
    checked_flag,
    checked_labels,
    checked_page,
    checked_recovery,
    checked_seconds,
    checked_seed,
    checked_session_id,
    checked_text,
    checked_tools,
)

__all__ = ["SessionManager", "runtime_of"]

_UNBOUND: tuple[str, ...] = get_args(Unbound)


class SessionManager:
    """Creates and opens sessions, keeps them in memory while they are used, and evicts idle ones.

    Use it as an async context manager: everything that runs for its sessions runs in its body.
    Leaving it closes every session. Open turns are interrupted, and tools that ignore their
    cancellation are waited for; then the store and the provider are closed.

    *tools* give their callables to tools of the same name that a configuration has without one.
    *idle_s* is how long a session that no handle holds stays in memory. *summariser* writes
    summaries instead of *provider*, where a configuration names a model for them; without it
    ``LLMSESSION_SUMMARY_PROVIDER`` may name one, ``anthropic`` or ``openai``. *clock* gives the
    times in messages and records, in seconds since the epoch. *logger* is a structlog logger;
    without one, logs go to the standard library's logger ``llmsession``. *prices* are by model name
    or its beginning, and take precedence over the built-in ones (``PRICES``). *tenant_budgets* are
    what all sessions of a tenant together may spend: see docs/how-to/limit-costs.md. *environ*
    replaces the environment, whose ``LLMSESSION_*`` fill open fields of configurations: see
    docs/explanation/compaction.md. *observers* are called with everything that happens, for
    metrics and traces.

    A synchronous tool runs in a thread, which nothing can stop. Leaving the manager waits for such
    threads for *thread_wait_s* seconds at most, and then logs a warning ``threads.left`` that names
    them; what they do after that, they do beside a store that is closed.

    *retention* are rules for how long sessions and their messages are kept: see
    docs/how-to/delete-and-forget.md. Sessions apply them when they are opened and when a turn has
    ended. A schedule applies them to the whole store, page by page: when the manager is entered,
    and again *retention_every_s* seconds after it was through, by default every hour. It also
    applies the age limits in ``SessionConfig.retention`` to sessions that nobody has open. Without
    rules there is a schedule only if *retention_every_s* is given.

    Raises InvalidConfig for invalid prices, budgets or tools, and for a provider of summaries that
    the environment names and that cannot be made; InvalidInput for an invalid *thread_wait_s*,
    rule or *retention_every_s*.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        summariser: Provider | None = None,
        store: Store | None = None,
        tools: Sequence[Tool] = (),
        idle_s: float = 60.0,
        clock: Callable[[], float] = time.time,
        logger: Any | None = None,
        prices: Mapping[str, Price] | None = None,
        tenant_budgets: Mapping[str, SpendingBudget] | None = None,
        environ: Mapping[str, str] | None = None,
        observers: Sequence[SessionObserver] = (),
        thread_wait_s: float = 10.0,
        retention: Sequence[Retention] = (),
        retention_every_s: float | None = None,
    ) -> None:
        self._runtime = Runtime(
            provider=provider,
            summariser=summariser,
            store=store,
            tools=tools,
            idle_s=idle_s,
            clock=clock,
            logger=logger,
            prices=prices,
            tenant_budgets=tenant_budgets,
            environ=environ,
            observers=observers,
            thread_wait_s=thread_wait_s,
            retention=retention,
        )
        every_s = checked_interval(retention_every_s, self._runtime.retention)
        self._schedule = None if every_s is None else RetentionSchedule(self._runtime, every_s)
        self.store: Store = self._runtime.given_store
        """The store that it was made with."""

    async def __aenter__(self) -> SessionManager:
        await self._runtime.enter()
        if self._schedule is not None:
            self._schedule.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._runtime.leave()

    def _get_runtime(self) -> Runtime:
        return self._runtime

    # Sessions.

    async def create(
        self,
        config: SessionConfig,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        seed: r.Seed | str | None = None,
        tenant: str | None = None,
        command_id: str | None = None,
    ) -> LLMSession:
        """A new session, durable when it is returned; without *session_id* it gets a random one.

        ``list`` finds the session by its *labels*: see ``LLMSession.label``. *seed* is a summary to
        begin with, for example of an earlier conversation (``LLMSession.summary``). It is the first
        block of the history's first message, until the conversation is cleared or that message is
        forgotten. *tenant* owns the session, and cannot be changed: it is the label
        ``llmsession.tenant``, which forks inherit. At a service a tenant can use the sessions whose
        ids begin with its name and a slash; random ids do. A repeat of *command_id*, which needs a
        *session_id*, returns the same session.

        Raises InvalidConfig, InvalidInput, SessionExists, StoreError, and SessionClosed once the
        manager is closing.
        """
        runtime = self._runtime
        runtime.check_accepting()
        if tenant is not None:
            tenant = checked_tenant(tenant)
        session = new_session_id(tenant) if session_id is None else checked_session_id(session_id)
        await runtime.tenant_logs.load_budget(tenant)
        config, stored = runtime.check_config(config, tenant)
        created = r.SessionCreated(
            session=session,
            config=stored,
            labels=with_max_age(
                with_tenant(checked_labels({} if labels is None else labels), tenant),
                config.max_age_s,
            ),
            seed=checked_seed(seed),
        )
        created = with_command(created, command_id)
        try:
            return LLMSession(runtime, await runtime.create(config, session, [created]))
        except SessionExists:
            if not await was_created_by(runtime.store, session, created.commands):
                raise
            return await self.open(session)

    async def import_conversation(
        self,
        conversation: Conversation,
        config: SessionConfig,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
    ) -> LLMSession:
        """A new session that continues *conversation*, which was read from a file for example.

        Without *session_id* the session gets the conversation's own id, so that nothing is imported
        twice, and without *labels* the conversation's. *tenant* owns it, as in ``create``: then its
        id begins with the tenant's name and a slash. Messages keep their ids and turns their
        numbers, unless two are the same. What a provider would refuse is repaired: calls and
        results are paired, and turns that begin with the assistant get a neutral user message in
        front. The log's ``source`` has a line for each repair and each note of the reader, and what
        else the conversation holds. Signed thinking is kept, and not sent again. The conversation's
        ``summary`` stands for its first ``summary_upto`` messages in the context; a rewind to
        before their end shows them again.

        Raises InvalidInput (also for what no repair makes valid, naming the rule), InvalidConfig
        (also without tools, if it holds calls), SessionExists, StoreError.
        """
        self._runtime.check_accepting()
        actor = await import_one(
            self._runtime, conversation, config, session_id=session_id, labels=labels, tenant=tenant
        )
        return LLMSession(self._runtime, actor)

    async def import_conversations(
        self,
        conversations: Sequence[Conversation],
        config_for: ConfigFor,
        *,
        tenant: str | None = None,
    ) -> tuple[str, ...]:
        """Import each of *conversations* as a session, which is not kept in memory. Returns their
        ids, in the same order.

        *config_for* is the configuration of all, or is called with each. *tenant* owns them all. A
        conversation whose ``parent`` is among them, with the same first turns, becomes a fork of
        its parent's session. Raises as ``import_conversation``; then none of them is left.
        """
        self._runtime.check_accepting()
        return await import_many(self._runtime, conversations, config_for, tenant=tenant)

    async def export_conversation(self, session_id: str) -> Conversation:
        """A session's history, live or cold, as a conversation: see ``conversation_of``."""
        return await conversation_of(self._runtime.store, checked_session_id(session_id))

    async def open(
        self,
        session_id: str,
        *,
        tools: Sequence[Tool] = (),
        takeover: bool = False,
        recovery: Recovery | None = None,
        unbound: Unbound = "raise",
    ) -> LLMSession:
        """A session that exists. *tools* binds its callables again, by name.

        Callables are not stored. If the session ran a tool when it was called last, and neither
        *tools* nor the manager has a callable for it, *unbound* decides. ``raise`` raises
        ToolsUnbound, before anything is changed. With ``caller`` the tool is the caller's, who
        answers its calls with ``submit_tool_results``. ``warn`` does the same, and logs a warning
        ``tools.unbound``, once for each tool: a service and recovery open sessions so.

        If an earlier owner left turns open, those that were queued end as aborted by a crash. The
        turn that was running ends the same way, or is resumed, as ``SessionConfig.recovery`` says;
        *recovery* replaces that for this call. A resumed turn is ``status().turn``, its calls to
        answer are ``open_calls()``, and ``turn(...)`` is its handle. If the session is live in this
        manager, nothing is recovered, and *tools* are bound for later calls.

        Raises SessionNotFound, SessionInUse (another live owner, unless *takeover*), ToolsUnbound,
        InvalidInput, StoreError.
        """
        self._runtime.check_accepting()
        tools = checked_tools(tools)
        actor = await self._runtime.activate(
            checked_session_id(session_id),
            takeover=checked_flag(takeover, "takeover"),
            tools=tools,
            recovery=checked_recovery(recovery),
            unbound=cast(Unbound, checked_choice(unbound, _UNBOUND, "unbound")),
        )
        if tools:
            actor.configuration.bind(tools)
        names = actor.configuration.unbound_tools
        if names and unbound == "raise":  # it was live here, opened by somebody who allowed it
            raise ToolsUnbound(session_id, names)
        return LLMSession(self._runtime, actor)

    async def open_or_create(
        self,
        session_id: str,
        config: SessionConfig,
        *,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        recovery: Recovery | None = None,
        unbound: Unbound = "raise",
    ) -> LLMSession:
        """The session *session_id*, which is created if it does not exist.

        One that exists keeps its own configuration and labels: of *config* only the tools'
        callables are bound, as by ``open``; *recovery* and *unbound* are as there. *labels* and
        *tenant* are as in ``create``. Of several callers at once one creates it, and the others
        open it. Raises as ``open`` and ``create``.
        """
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        tools = tools_with_callables(config.checked())
        options: dict[str, Any] = {"tools": tools, "recovery": recovery, "unbound": unbound}
        with suppress(SessionNotFound):
            return await self.open(session_id, **options)
        with suppress(SessionExists):  # somebody else has created it meanwhile
            return await self.create(config, session_id=session_id, labels=labels, tenant=tenant)
        return await self.open(session_id, **options)

    async def list(
        self,
        *,
        after: str = "",
        limit: int = 1000,
        filter: SessionFilter = EVERYTHING,
        archived: bool | None = False,
        titles: bool = False,
    ) -> Sequence[SessionRow]:
        """The sessions of the store that *filter* finds, ordered by id: at most *limit*, which is
        1 to 1,000, with an id greater than *after*. Acquires nothing.

        Archived sessions are left out; *archived* True finds only these, and None all. With
        *titles* each row has the session's title: see ``LLMSession.label``. Without a title that
        was given, that is the beginning of the first request, for which the first records of its
        log are read. Raises InvalidInput, StoreError.
        """
        filter, after = checked_filter(filter), checked_text(after, "after")
        limit = checked_page(limit)
        filter = with_archived(filter, archived)
        store = self._runtime.store
        rows = await begun_rows(store, after=after, limit=limit, filter=filter)
        return await with_titles(store, rows) if checked_flag(titles, "titles") else rows

    async def search(
        self,
        query: str,
        *,
        after: str = "",
        limit: int = 100,
        filter: SessionFilter = EVERYTHING,
    ) -> SearchPage:
        """The sessions whose conversation has a message with all words of *query*, ordered by id:
        at most *limit*, which is 1 to 1,000, of those that *filter* finds with an id greater than
        *after*.

        Words are compared without regard to case. ``begin*`` finds every word that begins so, and
        ``"two words"`` in quotes must follow each other. Texts, calls and results are searched;
        open turns, thinking, and what was forgotten, cleared or rewound are not found. A page ends
        early when much was read for it: go on with ``after=page.next`` until that is None.

        SQLite and PostgreSQL keep an index of words, which the first search makes and later ones
        bring up to date; an encrypted store keeps none, because it would hold the words in the
        open, and every session that *filter* finds is read. Acquires nothing. Raises InvalidInput,
        StoreError.
        """
        filter, after = checked_filter(filter), checked_text(after, "after")
        limit, query = checked_page(limit), checked_text(query, "query")
        return await search_sessions(
            self._runtime.store, query, after=after, limit=limit, filter=filter
        )

    async def row(self, session_id: str, *, titles: bool = False) -> SessionRow:
        """The session as ``list`` shows it. Acquires nothing. Raises InvalidInput,
        SessionNotFound, StoreError."""
        store, has_title = self._runtime.store, checked_flag(titles, "titles")
        row = await store.row(checked_session_id(session_id))
        if not row.head:  # as in ``list``: it never existed
            raise SessionNotFound(session_id)
        return (await with_titles(store, [row]))[0] if has_title else row

    async def delete(self, session_id: str) -> None:
        """Close the session if it is live here, and delete it for good.

        Raises SessionNotFound, StoreError. Another owner's handle meets SessionClosed.
        """
        await self._runtime.delete(checked_session_id(session_id))

    async def tenant_spending(self, tenant: str) -> Spending:
        """What all sessions of *tenant* have spent. The first call reads their logs. Raises
        InvalidInput, StoreError."""
        await self._runtime.tenant_logs.sum_up(checked_tenant(tenant))
        return self._runtime.tenants.spent(checked_tenant(tenant))

    async def set_tenant_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """Set what *tenant* may spend from now on; None is no limit. The budget is this manager's,
        and is not stored. Raises InvalidInput, InvalidConfig, StoreError."""
        await self._runtime.tenant_logs.sum_up(checked_tenant(tenant))
        self._runtime.tenants.set_budget(checked_tenant(tenant), budget)

    async def apply_retention(
        self, rules: Sequence[Retention], *, now: float | None = None, dry_run: bool = False
    ) -> RetentionReport:
        """Delete sessions and forget messages as *rules* say; with *dry_run* only report what would
        be done. *now* is in seconds since the epoch, by default the clock's.

        A session that is in use, here or in another process, is left as it is, and so is one that
        cannot be read; the report names them. A rule to forget costs a read of every log that it
        applies to and that is old enough. Raises InvalidInput, and StoreError where the store
        cannot be listed.
        """
        runtime = self._runtime
        runtime.check_accepting()
        moment = runtime.clock() if now is None else checked_seconds(now, "now")
        dry_run = checked_flag(dry_run, "dry_run")
        return await apply_retention(runtime, rules, now=moment, dry_run=dry_run)

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Accept no new sessions, and wait until every open turn has ended, at most *timeout_s*.

        Returns the sessions that still have an open turn. Live sessions still accept sends: stop
        the senders first.
        """
        if timeout_s is not None:
            timeout_s = checked_seconds(timeout_s, "timeout_s")
        self._runtime.stop_accepting()
        with anyio.move_on_after(timeout_s):
            for actor in self._runtime.actors:
                for run in tuple(actor.turns.runs.values()):
                    try:
                        await run.outcome.wait()
                    except SessionError:
                        continue
        return tuple(actor.session for actor in self._runtime.actors if actor.turns.runs)

    async def close(self) -> tuple[Closed, ...]:
        """Close every live session: interrupt its open turns, release it, name what still runs.

        Returns within the grace period plus the store's writes, whatever tools do.
        """
        return await self._runtime.close(leave_open=False)

    async def release(self) -> tuple[Closed, ...]:
        """Release every live session as it is, before the manager is left. Open turns are stopped,
        and stay open in the log. The next ``open`` recovers them as after a crash (``recovery``),
        but nothing that was decided or answered is lost. There queued turns end as aborted. Callers
        that wait for an open turn here get SessionClosed.

        Returns as ``close``.
        """
        sessions = await self._runtime.close(leave_open=True)
        await self._runtime.stop_works()
        running = set(self._runtime.running_works)
        return tuple(
            Closed(closed.session, tuple(name for name in closed.still_running if name in running))
            for closed in sessions
        )

    @property
    def live(self) -> tuple[str, ...]:
        """The sessions that are in memory."""
        return tuple(actor.session for actor in self._runtime.actors)

    @property
    def open_turns(self) -> int:
        """How many turns are open in the sessions in memory. Costs a walk over these."""
        return sum(len(actor.turns.runs) for actor in self._runtime.actors)


def runtime_of(manager: SessionManager) -> Runtime:
    """What *manager* is the face of. For this package's own services: users have the manager."""
    return SessionManager._get_runtime(manager)
