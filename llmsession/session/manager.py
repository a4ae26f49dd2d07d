"""SessionManager: all sessions of one process, those in memory and those that are only stored."""

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
from .values.commands import HandOverWhen, check_repeatable
from .values.config import Recovery, SessionConfig, Tool, Unbound, tools_with_callables
from .values.labels import checked_tenant, with_max_age, with_tenant
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

    Use it as an async context manager. Everything that runs for its sessions runs inside that
    context. Leaving the context interrupts open turns, closes every session, waits for tools that
    ignore their cancellation, and then closes the store and the provider.

    Parameters:

    - *provider* answers the model requests.
    - *summariser* is the provider of summaries, where a configuration names a model for them.
      Without it, ``LLMSESSION_SUMMARY_PROVIDER`` may name one (``anthropic`` or ``openai``); else
      *provider* writes them.
    - *store* keeps the sessions. Without one they are kept in memory only.
    - *tools*: a tool that is configured without a function gets the function of the manager's tool
      of the same name.
    - *idle_s* is how many seconds a session stays in memory that no handle refers to.
    - *clock* gives the times in messages and records, in seconds since the epoch.
    - *logger* is a structlog logger. Without one, the standard library's logger ``llmsession`` is
      used.
    - *prices* are keyed by model name or by the beginning of one. They take precedence over the
      built-in ``PRICES``.
    - *tenant_budgets* limit what all sessions of a tenant may spend together: see
      docs/how-to/limit-costs.md.
    - *environ* replaces the process environment. Its ``LLMSESSION_*`` variables fill configuration
      fields that are None: see docs/explanation/compaction.md.
    - *observers* are called with everything that happens, for metrics and traces.
    - *thread_wait_s*: a synchronous tool runs in a thread, and nothing can stop a thread. Leaving
      the manager waits at most this many seconds for such threads. Then it logs the warning
      ``threads.left`` with their names. They go on running after the store is closed.
    - *retention* are rules for how long sessions and their messages are kept: see
      docs/how-to/delete-and-forget.md. A session applies them when it is opened and when a turn has
      ended.
    - *retention_every_s*: a schedule applies the rules, page by page, to the whole store. It runs
      when the manager is entered, and again this many seconds after each run has finished (default:
      an hour). It also applies ``SessionConfig.retention.max_age_s`` to sessions that are not open.
      Without rules, the schedule runs only if *retention_every_s* is set.

    Raises InvalidConfig for invalid prices, budgets or tools, and if the provider of summaries that
    the environment names cannot be made. Raises InvalidInput for an invalid *idle_s*,
    *thread_wait_s*, *retention_every_s*, rule, or list of tools or observers, and for a provider, a
    store or a clock that is none.
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
        """The store that the manager was constructed with."""

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
        """Create a session. It is durable when this returns.

        - *session_id*: without one, the session gets a random id.
        - *labels* are texts by name; ``list`` can filter by them. See ``LLMSession.label``.
        - *seed* is a summary to begin with, for example of an earlier conversation
          (``LLMSession.summary``). It becomes the first block of the first message, until the
          conversation is cleared or that message is forgotten.
        - *tenant* owns the session and cannot be changed later. It is stored as the label
          ``llmsession.tenant``, and forks inherit it. At a service, a tenant can use only sessions
          whose ids begin with its name and a slash; random ids do.
        - *command_id* makes the call repeatable: a repeat returns the same session. It needs a
          *session_id*, and raises InvalidInput without one.

        Raises InvalidConfig, InvalidInput, SessionExists, StoreError, and SessionClosed if the
        manager is closing.
        """
        check_repeatable(command_id, session_id)
        runtime = self._runtime
        runtime.check_accepting()
        if tenant is not None:
            tenant = checked_tenant(tenant)
        session = (
            runtime.new_session_id(tenant) if session_id is None else checked_session_id(session_id)
        )
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
        """Create a session that continues *conversation*, for example one that was read from a
        file.

        Without *session_id* the session gets the conversation's own id, so that a second import of
        the same conversation raises SessionExists. Without *labels* it gets the conversation's
        labels. *tenant* owns the session, as in ``create``; then its id begins with the tenant's
        name and a slash.

        Messages keep their ids and turns keep their numbers, unless two are the same. Whatever a
        provider would refuse is repaired: calls are paired with results, and a turn that begins
        with the assistant gets a neutral user message in front. ``source`` in the log has a line
        for each repair and for each note of the reader, and everything else that the conversation
        holds. Signed thinking is kept, but it is not sent again. The conversation's ``summary``
        replaces its first ``summary_upto`` messages in the context. A rewind to a turn before their
        end shows these messages again.

        Raises InvalidInput, also if no repair makes the conversation valid (the message names the
        rule); InvalidConfig, also if the conversation has tool calls and *config* has no tools;
        SessionExists; StoreError.
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
        """Import each of *conversations* as a session. Returns their ids, in the same order.

        The sessions are not kept in memory. *config_for* is one configuration for all, or a
        function that is called with each conversation and returns its configuration. *tenant* owns
        all of them. If the ``parent`` of a conversation is among them and both begin with the same
        turns, the session becomes a fork of its parent's session.

        Raises the errors of ``import_conversation``. After an error none of the sessions is left.
        """
        self._runtime.check_accepting()
        return await import_many(self._runtime, conversations, config_for, tenant=tenant)

    async def export_conversation(self, session_id: str) -> Conversation:
        """The history of a session, whether or not it is in memory, as a conversation that can be
        imported again. Acquires no lease.

        Raises InvalidInput, SessionNotFound, and StoreError if the log cannot be read.
        """
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
        """Open an existing session, load it if it is not in memory, and take its lease.

        *tools* binds functions to the session's tools again, by name: functions are not stored.
        Some tools may have no function, neither in *tools* nor in the manager's. If the session
        itself ran such a tool when the model called it last, *unbound* decides:

        - ``raise`` (default) raises ToolsUnbound before anything is changed.
        - ``caller`` leaves the tool to the caller, who answers its calls with
          ``submit_tool_results``.
        - ``warn`` does the same as ``caller``, and logs the warning ``tools.unbound`` once for each
          tool. Services and recovery open sessions in this way.

        If an earlier owner left turns open, the queued ones end as aborted with the reason
        ``crash``. The turn that was running ends in the same way or is resumed, as
        ``SessionConfig.recovery`` says; *recovery* overrides that for this call. A resumed turn is
        ``status().turn``, its calls that wait for results are ``open_calls()``, and ``turn(...)``
        returns its handle. If the session is already live in this manager, nothing is recovered,
        and *tools* are bound for later calls.

        Raises SessionNotFound, SessionInUse (another live process owns the session; *takeover* True
        takes it nevertheless), ToolsUnbound, InvalidInput, StoreError.
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
        if names and unbound == "raise":  # already live: another caller opened it with "caller"
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
        """Open the session *session_id*, or create it if it does not exist.

        An existing session keeps its own configuration and labels. Of *config*, only the functions
        of its tools are bound, as by ``open``. *recovery* and *unbound* are those of ``open``;
        *labels* and *tenant* are those of ``create``. If several callers do this at once, one of
        them creates the session and the others open it. Raises the errors of ``open`` and
        ``create``.
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
        """The rows of stored sessions that match *filter*, ordered by id. Acquires no lease.

        Returns at most *limit* rows (1 to 1,000) with an id greater than *after*. For the next
        page, pass the last row's id as *after*. Archived sessions are left out by default;
        *archived* True returns only these, and None returns both. With *titles* each row has the
        session's title: see ``LLMSession.label``. If a session was never given a title, it is taken
        from the first request, and the first records of the log are read for it.

        Raises InvalidInput, StoreError.
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
        """Find the sessions whose conversation has a message that contains all words of *query*.

        Returns one page, ordered by session id: at most *limit* hits (1 to 1,000) from sessions
        that match *filter* and have an id greater than *after*. A page also ends early after
        reading 20,000 records. Go on with ``after=page.next`` until that is None.

        Upper and lower case are not distinguished. ``begin*`` matches every word with that prefix,
        and ``"two words"`` in quotes must follow each other. Texts, tool calls and results are
        searched. Open turns, thinking, and messages that were forgotten, cleared or rewound are not
        found.

        SQLite and PostgreSQL keep a word index. The first search builds it, and later ones bring it
        up to date. An encrypted store keeps no index, because the index would hold the words in
        plain text; every session that matches *filter* is read instead. Acquires no lease. Raises
        InvalidInput, StoreError.
        """
        filter, after = checked_filter(filter), checked_text(after, "after")
        limit, query = checked_page(limit), checked_text(query, "query")
        return await search_sessions(
            self._runtime.store, query, after=after, limit=limit, filter=filter
        )

    async def row(self, session_id: str, *, titles: bool = False) -> SessionRow:
        """The session's row, as ``list`` returns it. Acquires no lease.

        Raises InvalidInput, SessionNotFound, StoreError.
        """
        store, has_title = self._runtime.store, checked_flag(titles, "titles")
        row = await store.row(checked_session_id(session_id))
        if not row.head:  # as in ``list``: it never existed
            raise SessionNotFound(session_id)
        return (await with_titles(store, [row]))[0] if has_title else row

    async def delete(self, session_id: str) -> None:
        """Close the session if it is live in this manager, and delete it for good.

        If another process owns the session, that owner's handles raise SessionClosed afterwards.
        Raises SessionNotFound, StoreError.
        """
        await self._runtime.delete(checked_session_id(session_id))

    async def tenant_spending(self, tenant: str) -> Spending:
        """How much all sessions of *tenant* have spent together, at all managers that share the
        store. The first call may read their logs.

        Raises InvalidInput, StoreError.
        """
        return await self._runtime.tenant_logs.spent(checked_tenant(tenant))

    async def set_tenant_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """Set how much *tenant* may spend from now on; None removes the limit.

        The budget is set for this manager only and is not stored. Raises InvalidInput,
        InvalidConfig, StoreError.
        """
        await self._runtime.tenant_logs.sum_up(checked_tenant(tenant))
        self._runtime.tenants.set_budget(checked_tenant(tenant), budget)

    async def apply_retention(
        self, rules: Sequence[Retention], *, now: float | None = None, dry_run: bool = False
    ) -> RetentionReport:
        """Delete sessions and forget messages as *rules* say. Returns a report.

        With *dry_run* nothing is changed, and the report says what would be done. *now* is in
        seconds since the epoch; by default it is the clock's time. Sessions that are in use, here
        or in another process, are left unchanged, and so are sessions that cannot be read; the
        report names them. A rule that forgets messages reads the log of every session that it
        applies to and that is old enough.

        Raises InvalidInput, and StoreError if the store cannot be listed.
        """
        runtime = self._runtime
        runtime.check_accepting()
        moment = runtime.clock() if now is None else checked_seconds(now, "now")
        dry_run = checked_flag(dry_run, "dry_run")
        return await apply_retention(runtime, rules, now=moment, dry_run=dry_run)

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Stop accepting new sessions, and wait at most *timeout_s* until every open turn has
        ended.

        Returns the ids of the sessions that still have an open turn. Sessions in memory still
        accept messages, so stop their senders first.
        """
        if timeout_s is not None:
            timeout_s = checked_seconds(timeout_s, "timeout_s")
        self._runtime.stop_accepting()
        with anyio.move_on_after(timeout_s):
            for run in tuple(self._runtime.open_runs):
                with suppress(SessionError):
                    await run.outcome.wait()
        return tuple(actor.session for actor in self._runtime.actors if actor.turns.runs)

    async def close(self) -> tuple[Closed, ...]:
        """Close every live session: interrupt its open turns, and release its lease.

        Returns one ``Closed`` for each session, with the names of tools that still run. Takes at
        most the grace period plus the store's writes, whatever the tools do.
        """
        return await self._runtime.close(leave_open=False)

    async def release(self) -> tuple[Closed, ...]:
        """Release every live session without ending its open turns, for example before a restart.

        Call it before the manager is left. Running turns are stopped and stay open in the log. The
        next ``open`` recovers them as after a crash (see ``recovery``), but nothing that was
        decided or answered is lost. Queued turns end as aborted at that point. Callers that wait
        for an open turn here get SessionClosed. Returns the same as ``close``.
        """
        sessions = await self._runtime.close(leave_open=True)
        await self._runtime.stop_works()
        running = set(self._runtime.running_works)
        return tuple(
            Closed(closed.session, tuple(name for name in closed.still_running if name in running))
            for closed in sessions
        )

    async def hand_over(self, session_id: str, *, when: HandOverWhen = "step") -> Closed:
        """Give up a session that is live here, so that another manager on the same store goes on
        with it: with the running turn, its open calls, and the sends that wait. Returns once the
        session is free, and what still runs of it here.

        *when* says how long the running turn is waited for. ``idle``: to its end. ``step``: to the
        end of its step, so that no request is repeated and no tool that runs here is cut off; calls
        that wait for the caller go along. ``now``: not at all; the next owner repeats the request,
        and tells the model of tools that ran that their outcome is unknown. No other turn starts
        meanwhile, and of two calls the more urgent counts.

        Afterwards commands to the session's handles here raise SessionMoved, as do those that were
        sent meanwhile and are not accepted: repeat them with their ``command_id`` at the next
        owner. Subscribers get every event up to here, and then their end; their cursor is where
        they go on there. A session that is not live here is left as it is.

        Raises InvalidInput, SessionNotFound, StoreError, SessionClosed, and SessionMoved where
        another owner has taken the session already. Cancelling the wait changes nothing.
        """
        session = checked_session_id(session_id)
        choice = checked_choice(when, get_args(HandOverWhen), "when")
        return await self._runtime.hand_over(session, cast(HandOverWhen, choice))

    @property
    def live(self) -> tuple[str, ...]:
        """The ids of the sessions that are in memory."""
        return tuple(actor.session for actor in self._runtime.actors)

    @property
    def open_turns(self) -> int:
        """The number of open turns in all sessions in memory."""
        return len(self._runtime.open_runs)


def runtime_of(manager: SessionManager) -> Runtime:
    """The ``Runtime`` behind *manager*. For the other layers of this package, not for users."""
    return SessionManager._get_runtime(manager)
