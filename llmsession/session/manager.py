"""SessionManager: the sessions of one process, live and cold."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import TracebackType
from typing import Any, get_args
from weakref import WeakValueDictionary

import anyio
import msgspec
from anyio.abc import TaskGroup

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    SessionClosed,
    SessionError,
    SessionExists,
    SessionNotFound,
)
from llmsession.providers.protocol import Provider
from llmsession.store.memory import MemoryStore
from llmsession.store.protocol import (
    EVERYTHING,
    Lease,
    Owner,
    Search,
    SessionRow,
    Store,
    this_process,
)
from llmsession.transcripts import Conversation
from llmsession.turns import records as r
from llmsession.turns.previews import ToolUse
from llmsession.turns.spending.prices import Price, PriceTable
from llmsession.turns.spending.spending import Spending, SpendingBudget

from .actor.actor import Actor
from .actor.recovery import recovery_records
from .core.core import Services, profile_of
from .core.observers import SessionObserver
from .core.subscriptions import Subscriptions
from .core.tenant_logs import TenantLogs
from .core.tenants import Tenants
from .handles.session import LLMSession
from .log.state import SessionState
from .operations.export import conversation_of
from .operations.import_sessions import ConfigFor, import_many, import_one
from .operations.retention import Retention, RetentionReport, apply_retention
from .registry.activation_table import LiveSessions
from .registry.idle_evictor import IdleEvictor
from .registry.loader import Loader, begun_rows, was_created_by, with_command
from .registry.reactivation import ReactivationQueue
from .tasks.task_host import TaskHost
from .tasks.timers import Timers
from .tasks.works import Works
from .values.config import Recovery, SessionConfig, Tool, bind_tools, load_config
from .values.environment import with_environment
from .values.labels import checked_tenant, new_session_id, tenant_of, with_tenant
from .values.outcome import Closed
from .values.validation import checked_labels, checked_search, checked_seed, checked_session_id

__all__ = ["SessionManager"]

GRACE_S = 0.1
"""How long the manager's own works may take to stop when it is left."""
_RECOVERIES: tuple[str | None, ...] = (None, *get_args(Recovery))


class SessionManager:
    """Creates and opens sessions, keeps the live ones, evicts those that nobody holds.

    Use it as an async context manager; everything that runs for its sessions runs in it.
    Leaving it closes every session: open turns are interrupted, and tools that ignore their
    cancellation are waited for; then the store and the provider are closed. *tools* are bound, by
    name, to tools of its sessions that come without a callable. *idle_s* is how long a session
    that nobody holds stays in memory. *summariser* is asked for summaries, where a configuration
    has a model for them, in place of *provider*. *clock* gives the times in messages and records,
    in seconds since the epoch. *logger* is a structlog logger; without one, logs go to the standard
    library's logger ``llmsession``.
    *prices* are by model name or its beginning, and go before the known ones (``PRICES``);
    *tenant_budgets* are what all sessions of a tenant together may spend: see docs/budgets.md.
    *environ* stands for the environment, whose ``LLMSESSION_*`` fill what configurations leave
    open: see docs/compaction.md.
    *observers* are told of all that happens, for metrics and traces.
    Raises InvalidConfig for those that cannot be kept.
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
    ) -> None:
        self.provider = provider
        self.environ = dict(os.environ if environ is None else environ)
        """What configurations leave open is looked for here first; read once."""
        self.summariser = summariser
        self._prices = PriceTable(prices)
        self.tenants = Tenants(tenant_budgets)
        self.store: Store = store if store is not None else MemoryStore()
        self._tools = tuple(tools)
        self._clock = clock
        self._logger = logger
        self._observers = tuple(observers)
        self.owner: Owner = this_process(uuid.uuid4().hex)
        """Who this manager is to its store."""
        self._hub = Subscriptions()
        self.loader = Loader(self.store, self.owner, clock, self._hub)
        self._live = LiveSessions(
            self.store,
            start=self.start,
            check=self._check_accepting,
            # Perhaps it comes, and nobody holds it. The sweeper is made of what is made here.
            left=lambda: self.sweeper.later(),  # noqa: PLW0108
        )
        self._tenant_logs = TenantLogs(
            self.store,
            self._prices,
            self.tenants,
            lambda: [actor.core.account for actor in self._live.actors.values()],
        )
        self._returns: WeakValueDictionary[str, ReactivationQueue] = WeakValueDictionary()
        self.sweeper = IdleEvictor(self._live.actors, idle_s, self.evict_idle)
        self._close_error: Exception | None = None
        self._entered = False
        self._accepting = False

    async def __aenter__(self) -> SessionManager:
        if self._entered:
            raise InvalidInput("a SessionManager can be entered once")
        self._entered = self._accepting = True
        self._house = TaskHost(self._start, self._close_all, self._close_parts)
        await self._house.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._house.leave()
        if self._close_error is not None:
            raise self._close_error

    async def _close_all(self) -> None:
        await self.close()
        await self._works.stop_all(GRACE_S)

    def _start(self, group: TaskGroup) -> None:
        self._group = group
        self._timers = Timers(group)
        self._works = Works(group)
        self.sweeper.begin(self._timers, self._works)
        self._world = Services(
            provider=self.provider,
            summariser=self.summariser,
            works=self._works,
            timers=self._timers,
            hub=self._hub,
            clock=self._clock,
            logger=self._logger,
            prices=self._prices,
            tenants=self.tenants,
            observers=self._observers,
        )

    async def _close_parts(self) -> None:
        self._accepting = False
        for actor in tuple(self._live.actors.values()):  # there are some only after a crash of ours
            with suppress(Exception):
                await self.store.release(actor.evict())
        closing: list[Any] = [self.store]
        # A provider need not have anything to close, and one that is shared is not ours to.
        providers = [self.provider]
        if self.summariser is not None and self.summariser is not self.provider:
            providers.append(self.summariser)
        for provider in providers:
            if hasattr(provider, "aclose") and not getattr(provider, "is_held", False):
                closing.append(provider)
        for each in closing:
            try:
                await each.aclose()
            except Exception as error:  # it is raised where the manager is left
                self._close_error = self._close_error or error

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

        *labels* are what ``list`` finds it by: see ``LLMSession.label``. *seed* is a summary that
        it begins with, of an earlier conversation for example (``LLMSession.summary``): the first
        message of its history begins with it, in a block of the session's own, until the
        conversation is cleared or that message forgotten. *tenant* is who it belongs to, for good:
        the label ``llmsession.tenant``, which forks inherit. At a service a tenant reaches the
        sessions whose ids begin with its name and a slash, as random ones do. A repeat of
        *command_id*, which needs a *session_id*, returns the same session.

        Raises InvalidConfig, InvalidInput, SessionExists, StoreError, and SessionClosed once the
        manager is closing.
        """
        self._check_accepting()
        if tenant is not None:
            tenant = checked_tenant(tenant)
        session = new_session_id(tenant) if session_id is None else checked_session_id(session_id)
        await self._know_tenant(tenant)
        config, stored = self.checked(config, tenant)
        created = r.SessionCreated(
            session=session,
            config=stored,
            labels=with_tenant(checked_labels(labels or {}), tenant),
            seed=checked_seed(seed),
        )
        created = with_command(created, command_id)
        try:
            return LLMSession(self, await self.make(config, session, [created]))
        except SessionExists:
            if not await was_created_by(self.store, session, created.commands):
                raise
            return await self.open(session)

    def checked(self, config: Any, tenant: str | None = None) -> tuple[SessionConfig, msgspec.Raw]:
        """*config* as a session of *tenant* can run with it, and its logged form. Raises
        InvalidConfig."""
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        config = with_environment(config, self.environ)
        config, stored = self._world.shared(self.with_callables(config.checked()))
        config.check_model(profile_of(self.provider, config))
        self._world.check_priced(config, tenant)
        return config, stored

    def with_callables(self, config: SessionConfig) -> SessionConfig:
        """*config*, which was checked: its tools that have no callable get the manager's."""
        bare = {name for name, tool in config.bound_tools.items() if tool.run is None}
        given = [tool for tool in self._tools if tool.name in bare]
        return bind_tools(config, given) if given else config

    async def make(self, config: SessionConfig, session: str, records: Sequence[r.Record]) -> Actor:
        """A new session whose log is *records*; *config* was checked. Raises as ``create``."""

        async def make() -> Actor:
            state, hold = await self.loader.create(session, records)
            return await self.add(state, config, hold)

        return await self.bring(session, make)

    async def import_conversation(
        self,
        conversation: Conversation,
        config: SessionConfig,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
    ) -> LLMSession:
        """*conversation*, read from a file for example, as a new session that goes on from it.

        Without *session_id* it gets the conversation's own id, so that nothing is imported twice,
        and without *labels* those of the conversation. With *tenant* it belongs to that one, as in
        ``create``: its own id then stands behind the tenant's name and a slash. Messages keep
        their ids, turns their numbers, where none is there twice. What a provider would refuse is
        put right: calls and results are paired, turns that begin with the assistant get a neutral
        message in front. Each such repair and each note of the reader is a line of the log's
        ``source``, which has what else the conversation holds. Signed thinking is kept and not
        sent again.

        Raises InvalidInput (also for what no repair makes valid, naming the rule), InvalidConfig
        (also without tools, if it holds calls), SessionExists, StoreError.
        """
        self._check_accepting()
        return LLMSession(
            self,
            await import_one(
                self, conversation, config, session_id=session_id, labels=labels, tenant=tenant
            ),
        )

    async def import_conversations(
        self,
        conversations: Sequence[Conversation],
        config_for: ConfigFor,
        *,
        tenant: str | None = None,
    ) -> tuple[str, ...]:
        """Each of *conversations* as a session, cold; their ids, in the same order.

        *config_for* is the configuration of all, or is called with each; *tenant* is whose they
        all are. A conversation whose
        ``parent`` is among them, with the same first turns, becomes a fork of that one's session.
        Raises as ``import_conversation``; then none of them is left.
        """
        self._check_accepting()
        return await import_many(self, conversations, config_for, tenant=tenant)

    async def export_conversation(self, session_id: str) -> Conversation:
        """A session's history, live or cold, as a conversation: see ``conversation_of``."""
        return await conversation_of(self.store, session_id)

    async def open(
        self,
        session_id: str,
        *,
        tools: Sequence[Tool] = (),
        takeover: bool = False,
        recovery: Recovery | None = None,
    ) -> LLMSession:
        """A session that exists, live or cold; *tools* binds its callables again, by name.

        Of the turns that an earlier owner left open, those that waited in the queue end aborted,
        as a crash. The one that was running ends so too, or goes on, as ``SessionConfig.recovery``
        says, or *recovery* this once: see there. One that goes on is ``status().turn``, its calls
        to answer are ``open_calls()``, and ``turn(...)`` is its handle. Where the session is live
        in this manager nothing is recovered, and *tools* are bound for the calls to come.

        Raises SessionNotFound, SessionInUse (another live owner, unless *takeover*), InvalidInput,
        StoreError.
        """
        self._check_accepting()
        if recovery not in _RECOVERIES:
            told = ", ".join(get_args(Recovery))
            raise InvalidInput(f"recovery is {recovery!r}; it is one of {told}")
        actor = await self.activate(session_id, takeover=takeover, tools=tools, recovery=recovery)
        if tools:
            actor.settings.bind(tools)
        return LLMSession(self, actor)

    async def list(
        self, *, after: str = "", limit: int = 1000, search: Search = EVERYTHING
    ) -> Sequence[SessionRow]:
        """The sessions of the store that are looked for, by id, those greater than *after*, at
        most *limit*. Acquires nothing. Raises InvalidInput, StoreError.
        """
        wanted = checked_search(search)
        return await begun_rows(self.store, after=after, limit=limit, search=wanted)

    async def row(self, session_id: str) -> SessionRow:
        """The session as the store lists it. Acquires nothing. Raises SessionNotFound,
        StoreError."""
        found = await self.store.row(session_id)
        if not found.head:  # as in ``list``: it never existed
            raise SessionNotFound(session_id)
        return found

    async def delete(self, session_id: str) -> None:
        """Close the session if it is live here, and delete it for good.

        Raises SessionNotFound, StoreError. Another owner's handle meets SessionClosed.
        """
        actor = self._live.actors.get(session_id)
        if actor is not None:
            await actor.put_close().wait()
        await self.store.delete(session_id)
        self.tenants.deleted(session_id)

    async def tenant_spending(self, tenant: str) -> Spending:
        """What all sessions of *tenant* have spent; the first time their logs are read. Raises
        InvalidInput, StoreError."""
        await self._tenant_logs.sum_up(checked_tenant(tenant))
        return self.tenants.spent(tenant)

    async def set_tenant_budget(self, tenant: str, budget: SpendingBudget | None) -> None:
        """What *tenant* may spend from now on; None is no limit. The manager's, not the store's:
        it is not kept. Raises InvalidInput, InvalidConfig, StoreError."""
        await self._tenant_logs.sum_up(checked_tenant(tenant))
        self.tenants.set_budget(tenant, budget)

    async def _know_tenant(self, tenant: str | None) -> None:
        """A budget cannot be kept before it is known what was spent of it."""
        if tenant is not None and self.tenants.budget(tenant) is not None:
            await self._tenant_logs.sum_up(tenant)

    async def apply_retention(
        self, rules: Sequence[Retention], *, now: float | None = None, dry_run: bool = False
    ) -> RetentionReport:
        """Delete the sessions, and forget what was said in them, that *rules* say; with *dry_run*
        only tell what would be done. *now* is in seconds since the epoch, by default the clock's.

        A session that is held, here by a handle or a turn or elsewhere, is left as it is, and so
        is one that cannot be read; the report names them. Every log that a rule to forget is
        about and that is old enough is read. Raises InvalidInput, and StoreError where the store
        cannot be listed.
        """
        self._check_accepting()
        moment = self._clock() if now is None else now
        return await apply_retention(self, rules, now=moment, dry_run=dry_run)

    async def drain(self, timeout_s: float | None = None) -> tuple[str, ...]:
        """Take no new sessions and wait until every open turn has ended, at most *timeout_s*.

        Returns the sessions that still have one open. Sends to live sessions are still taken:
        stop their senders first.
        """
        self._accepting = False
        with anyio.move_on_after(timeout_s):
            for actor in tuple(self._live.actors.values()):
                for run in tuple(actor.turns.runs.values()):
                    try:
                        await run.outcome.wait()
                    except SessionError:
                        continue
        return tuple(name for name, actor in self._live.actors.items() if actor.turns.runs)

    async def close(self) -> tuple[Closed, ...]:
        """Close every live session: interrupt what is open, release it, name what still runs.

        Returns within the grace period plus the store's writes, whatever tools do.
        """
        return await self._end_all(leave_open=False)

    async def release(self) -> tuple[Closed, ...]:
        """Let every live session go as it is, before the manager is left. Open turns are stopped
        and stay open in the log: whoever opens the session next recovers them, as after a crash
        (``recovery``), but nothing that was decided or answered is lost. Queued turns end aborted
        there. Who waits for an open turn gets SessionClosed.

        Returns as ``close``.
        """
        closed = await self._end_all(leave_open=True)
        await self._works.stop_all(GRACE_S)
        running = set(self.running_works)
        return tuple(
            Closed(each.session, tuple(name for name in each.still_running if name in running))
            for each in closed
        )

    async def _end_all(self, *, leave_open: bool) -> tuple[Closed, ...]:
        self._accepting = False
        self.sweeper.stop()
        closed = await self._live.end_all(leave_open=leave_open)
        self._timers.close()
        self._hub.end_all()
        return tuple(closed)

    def _check_accepting(self) -> None:
        if not self._entered:
            raise InvalidInput("enter the SessionManager first: async with SessionManager(...)")
        if not self._accepting:
            raise SessionClosed("the SessionManager is closing and takes no sessions")

    # Bringing sessions in.

    async def activate(
        self,
        session: str,
        *,
        takeover: bool = False,
        tools: Sequence[Tool] = (),
        recovery: Recovery | None = None,
    ) -> Actor:
        """The live actor of *session*, loaded from the store if it is cold: only then are *tools*
        bound, and open turns recovered.

        Cancelling the wait does not stop the loading. Raises as ``open``.
        """
        return await self._live.find_or_bring(
            session,
            lambda: self._load(session, takeover, tools, recovery),
            takeover=takeover,
        )

    async def bring(self, session: str, make: Callable[[], Awaitable[Actor]]) -> Actor:
        """The actor of a new session, which *make* makes, in a task of the manager's."""
        return await self._live.bring(session, make)

    async def _load(
        self, session: str, takeover: bool, tools: Sequence[Tool], recovery: Recovery | None
    ) -> Actor:
        async with self.loader.taken(session, takeover=takeover) as (state, hold):
            config = self.bound(state, tools)
            records = recovery_records(state, recovery or config.recovery)
            await self.loader.write(state, hold, records)
            return await self.add(state, config, hold)

    def bound(self, state: SessionState, tools: Sequence[Tool] = ()) -> SessionConfig:
        """The configuration in the log, with the manager's callables and those of *tools*."""
        config = bind_tools(load_config(state.config).checked(), (*self._tools, *tools))
        return self._world.shared(config)[0]

    async def add(self, state: SessionState, config: SessionConfig, hold: Lease) -> Actor:
        """The live actor of a session that was made or taken. Raises StoreError where its tenant
        has a budget, and what was spent of it cannot be read."""
        await self._know_tenant(tenant_of(state.labels))
        actor = Actor(
            state=state,
            config=config,
            store=self.store,
            lease=msgspec.structs.replace(hold, head=state.head),
            services=self._world,
            spawn=self._serve,
            gone=self._live.forget,
        )
        self._live.add(actor)
        actor.core.account.tell_tenant()
        actor.turns.resume()
        self.sweeper.came()
        return actor

    def returns(self, session: str) -> ReactivationQueue:
        """Where commands to a cold *session* wait for it, the same for all of its handles."""
        return self._returns.setdefault(session, ReactivationQueue())

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work*, which reports its own errors, among the manager's works."""
        self._works.start(name, work)

    def open_calls(self, session: str) -> tuple[ToolUse, ...]:
        """The calls that wait for their results in a session; () where it is not live here."""
        actor = self._live.actors.get(session)
        return actor.open_calls if actor is not None else ()

    def _serve(self, actor: Actor) -> None:
        self._group.start_soon(actor.serve, name=f"llmsession {actor.session}")

    # Letting sessions go.

    def unpin(self, actor: Actor) -> None:
        """A handle is gone. Called by the garbage collector."""
        self.sweeper.unpin(actor)

    async def evict_idle(self) -> int:
        """Release every session that nobody holds and that has nothing open; returns how many.
        They come back when they are opened. Their subscribers stay."""
        return sum([await self.evict(actor) for actor in tuple(self._live.actors.values())])

    async def evict(self, actor: Actor) -> bool:
        """Release a session, if nobody holds it and nothing is open; says whether it did."""
        return await self._live.evict(actor)

    def reserved(self, session: str) -> AbstractAsyncContextManager[None]:
        """Whoever wants to make, open or release *session* here waits until the body is through."""
        return self._live.reserved(session)

    def find_live(self, session: str) -> Actor | None:
        """The session's actor, if it is live here."""
        return self._live.actors.get(session)

    @property
    def live(self) -> tuple[str, ...]:
        """The sessions that are in memory."""
        return tuple(self._live.actors)

    @property
    def open_turns(self) -> int:
        """How many turns are open in the sessions that are in memory. Costs a walk over these."""
        return sum(len(actor.turns.runs) for actor in self._live.actors.values())

    @property
    def running_works(self) -> tuple[str, ...]:
        """What runs now for the sessions: streams, tools, jobs."""
        return self._works.running
