"""Runtime: the services, tasks and live actors behind one SessionManager."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from llmsession.errors import (
    InvalidConfig,
    InvalidInput,
    SessionClosed,
    SessionNotFound,
    ToolsUnbound,
    contained,
    contained_in_task,
    error_text,
)
from llmsession.providers.protocol import Provider
from llmsession.store.checked import CheckedStore, checked_store
from llmsession.store.memory import MemoryStore
from llmsession.store.ownership import gave_up
from llmsession.store.protocol import Lease, Owner, Store, this_process
from llmsession.turns import records as r
from llmsession.turns.messages import Message
from llmsession.turns.previews import ToolUse
from llmsession.turns.spending.prices import Price, PriceTable
from llmsession.turns.spending.spending import SpendingBudget

from ..actor.actor import Actor
from ..actor.recovery import recovery_records
from ..core.core import Services, profile_of
from ..core.observers import SessionObserver
from ..core.session_log import SessionLog, log_bug, log_trouble
from ..core.subscriptions import Subscriptions
from ..core.tenant_logs import TenantLogs, tenants_of
from ..core.turn_run import Run
from ..log.fork_records import Branch
from ..log.state import SessionState
from ..tasks.clock import checked_clock
from ..tasks.owner_lease import OwnerLease
from ..tasks.task_host import LoopCalls, TaskHost, Tasks
from ..tasks.timers import Timers
from ..tasks.works import Works
from ..values.commands import ForkPoint, HandOverWhen, Retain
from ..values.config import (
    Recovery,
    SessionConfig,
    Tool,
    Unbound,
    bind_tools,
    logged_config,
    unbound_tools,
)
from ..values.environment import with_environment
from ..values.history_limits import HistoryLimits
from ..values.labels import new_session_id, tenant_of
from ..values.outcome import Closed
from ..values.retention import Retention, checked_rules
from ..values.validation import (
    check_part,
    checked_environ,
    checked_observers,
    checked_seconds,
    checked_tools,
)
from .activation_table import ActivationTable
from .idle_evictor import IdleEvictor
from .loader import Loader
from .reactivation import ReactivationQueue
from .summary_provider import summary_provider
from .unreleased import Unreleased

__all__ = ["Runtime"]

EVICTED_AT_ONCE = 50
"""How many sessions are looked at, and released if nobody uses them, in one go: about 1 ms."""
GRACE_S = 0.1
"""How many seconds the manager's own works may take to stop when the manager is left."""


class Runtime:
    """The services, the live actors and the tasks of one manager's sessions.

    ``SessionManager`` is its public interface and documents the parameters. Handles and operations
    on whole sessions use the runtime directly. Everything that runs for its sessions runs in one
    task group, from ``enter`` to ``leave``.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        summariser: Provider | None,
        store: Store | None,
        tools: Sequence[Tool],
        idle_s: float,
        clock: Callable[[], float],
        logger: Any | None,
        prices: Mapping[str, Price] | None,
        tenant_budgets: Mapping[str, SpendingBudget] | None,
        environ: Mapping[str, str] | None,
        observers: Sequence[SessionObserver],
        thread_wait_s: float,
        retention: Sequence[Retention] = (),
    ) -> None:
        self.provider = _checked_provider(provider, "provider")
        self.environ = checked_environ(os.environ if environ is None else environ)
        """Read once. Configuration fields that are None are filled from it."""
        self.given_store: Store = MemoryStore() if store is None else _checked_store(store)
        """The store that the user passed."""
        self.store: CheckedStore = checked_store(self.given_store)
        self.owner: Owner = this_process(uuid.uuid4().hex)
        """The identity of this manager towards its store."""
        self.tenants = tenants_of(self.given_store, self.owner.name, tenant_budgets)
        self.new_session_id: Callable[[str | None], str] = new_session_id
        """A new id for a session of a tenant. A cluster replaces it."""
        self.clock = checked_clock(clock, lambda error: log_bug(logger, "clock.failed", error))
        self.subscriptions = Subscriptions()
        self._summariser = (
            summary_provider(self.environ)
            if summariser is None
            else _checked_provider(summariser, "summariser")
        )
        self._tools = checked_tools(tools)
        self._logger = logger
        self._prices = PriceTable(prices)
        self._observers = checked_observers(observers)
        self.retention = checked_rules(retention)
        """The rules that apply to every session here as long as the manager runs."""
        self._thread_wait_s = checked_seconds(
            thread_wait_s, "thread_wait_s", minimum=0, maximum=math.inf
        )
        self._loader = Loader(
            self.store,
            self.owner,
            self.clock,
            self.subscriptions,
            self._prices,
            ignored=self._snapshot_ignored,
        )
        self._table = ActivationTable(
            self.store,
            run_work=self.run_work,
            check=self.check_accepting,
            # The session may become live after its caller gave up. Then no handle refers to it.
            on_abandoned=lambda: self.evictor.schedule(),  # noqa: PLW0108  # made below
        )
        idle_s = checked_seconds(idle_s, "idle_s", minimum=0, maximum=math.inf)
        self.evictor = IdleEvictor(self._table.actors, idle_s, self.evict_idle)
        self.tenant_logs = TenantLogs(
            self.store,
            self.given_store,
            self._prices,
            self.tenants,
            lambda tenant: [actor.core.account for actor in self._table.of_tenant(tenant)],
        )
        self._reactivations: WeakValueDictionary[str, ReactivationQueue] = WeakValueDictionary()
        self._newest_logged: tuple[bytes, SessionConfig] | None = None
        """The newest configuration that was read in a log, as it was there, and what it is here.
        Many sessions of one kind may be opened after each other."""
        self.open_runs: set[Run] = set()
        """The accepted turns of all live sessions that have not ended."""
        self._close_error: Exception | None = None
        self._warned: set[str] = set()
        """The unbound tools that a warning has already named."""
        self._entered = False
        self._accepting = False

    # Start and end.

    async def enter(self) -> None:
        """Start the task group. Raises InvalidInput the second time."""
        if self._entered:
            raise InvalidInput("a SessionManager can be entered only once; create another one")
        self._entered = self._accepting = True
        self._host = TaskHost(self._start, self._end, self._close_parts, cancelled=self._stop_all)
        await self._host.enter()

    async def leave(self) -> None:
        """Close every session, the store and the providers. Raises the first error of closing
        those.
        """
        await self._host.leave()
        if self._close_error is not None:
            raise self._close_error

    def _start(self, group: TaskGroup, tasks: Tasks) -> None:
        loop_calls = LoopCalls(group)
        self._timers = Timers(tasks, loop_calls)
        self._works = Works(tasks, loop_calls, self._work_failed)
        table = self._table
        self.unreleased = Unreleased(
            self.store, self.owner, table.is_busy, table.live_epoch, self.run_work
        )
        self.store.on_unreleased = self._release_later
        self.evictor.start(self._timers, self._works)
        self._services = Services(
            provider=self.provider,
            summariser=self._summariser,
            works=self._works,
            loop_calls=loop_calls,
            timers=self._timers,
            subscriptions=self.subscriptions,
            clock=self.clock,
            lease=OwnerLease(
                self.given_store,
                self.owner,
                live=lambda: self._table.sessions,
                found=self._table.taken,
                run_work=self.run_work,
                log_trouble=partial(log_trouble, self._logger),
            ),
            logger=self._logger,
            prices=self._prices,
            tenants=self.tenants,
            open_runs=self.open_runs,
            observers=self._observers,
            retention=self.retention,
        )

    def _work_failed(self, name: str, error: Exception) -> None:
        log_bug(self._logger, "work.crashed", error, work=name)

    async def _end(self) -> None:
        await self.close(leave_open=False)
        await self.stop_works()
        self._services.lease.end()
        await self._wait_for_threads()

    async def _wait_for_threads(self) -> None:
        left = await self._services.tool_threads.wait_all(self._thread_wait_s)
        if left:
            log = SessionLog(self._logger, "", content=False)
            log.trouble("threads.left", works=list(left), waited_s=self._thread_wait_s)

    async def _stop_all(self) -> None:
        """The manager's tasks are being cancelled: end everything without the usual order."""
        self._accepting = False
        for actor in self.actors:
            actor.stop()
        self._timers.close()
        await self.stop_works()
        await self._wait_for_threads()

    async def _close_parts(self) -> None:
        self._accepting = False
        for actor in self.actors:  # normally there are none left; some are if an actor crashed
            self.store.release_later(actor.evict())
        await self.unreleased.end()
        try:
            await self.tenants.give_back()
        except BaseException as error:  # what is held from others ends by itself
            contained_in_task(error)
        parts: list[Any] = [self.store]
        providers = [self.provider]
        if self._summariser is not None and self._summariser is not self.provider:
            providers.append(self._summariser)
        for provider in providers:
            # A provider does not need an ``aclose``. A shared provider is not ours to close.
            if hasattr(provider, "aclose") and not getattr(provider, "is_held", False):
                parts.append(provider)
        for part in parts:
            try:
                await part.aclose()
            except BaseException as error:  # ``leave`` raises the first error
                self._close_error = self._close_error or contained_in_task(error)
        if self.store.may_hold:
            gave_up(self.owner)

    def _release_later(self, session: str) -> None:
        if self._accepting:  # otherwise the manager is being left, and tries once more at its end
            self.unreleased.begin(session)

    async def close(self, *, leave_open: bool) -> tuple[Closed, ...]:
        """Close every live session. With *leave_open*, open turns get no end in the log."""
        self._accepting = False
        self.evictor.stop()
        closed = await self._table.close_all(leave_open=leave_open)
        self._timers.close()
        self.subscriptions.end_all()
        return tuple(closed)

    async def stop_works(self) -> None:
        """Cancel every work, and wait a short time until they have stopped."""
        await self._works.stop_all(GRACE_S)

    def stop_accepting(self) -> None:
        """Activate no more sessions."""
        self._accepting = False

    def check_accepting(self) -> None:
        """Raises InvalidInput before ``enter``, and SessionClosed once the manager is closing."""
        if not self._entered:
            raise InvalidInput("enter the SessionManager first: async with SessionManager(...)")
        if not self._accepting:
            raise SessionClosed("the SessionManager is closing and accepts no more sessions")

    @property
    def is_lease_valid(self) -> bool:
        """Does this manager hold its sessions for certain? Call it after ``enter``."""
        return self._services.lease.is_valid

    # Works.

    def after(self, delay_s: float, fire: Callable[[], None]) -> None:
        """Call *fire* after *delay_s* seconds, unless the manager is closed first."""
        self._timers.after(delay_s, fire)

    def run_work(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run *work* among the manager's works. It must report its own errors."""
        self._works.start(name, work)

    @property
    def running_works(self) -> tuple[str, ...]:
        """The names of the works that run now: streams, tools and jobs."""
        return self._works.running

    # Configurations.

    def check_config(
        self, config: Any, tenant: str | None = None
    ) -> tuple[SessionConfig, msgspec.Raw]:
        """*config* in the form in which a session of *tenant* runs with it, and its logged form.

        Raises InvalidConfig.
        """
        if not isinstance(config, SessionConfig):
            raise InvalidConfig(f"a session needs a SessionConfig, not {type(config).__name__}")
        config, stored = self._services.shared(self.complete_config(config))
        config.check_model(profile_of(self.provider, config))
        self._services.check_priced(config, tenant)
        return config, stored

    def complete_config(
        self, config: SessionConfig, changes: Mapping[str, Any] | None = None
    ) -> SessionConfig:
        """*config* with *changes*, checked.

        Fields that are None are filled from the environment, and tools without a function get the
        manager's functions. Raises InvalidConfig.
        """
        try:
            if changes:
                config = msgspec.structs.replace(config, **changes)
            config = with_environment(config, self.environ, self._check_for_model).checked()
        except InvalidConfig:
            raise
        except BaseException as raised:  # a value may be anything
            error = contained(raised)
            text = error_text(error)
            raise InvalidConfig(f"the configuration cannot be read: {text}") from error
        bare = {name for name, tool in config.bound_tools.items() if tool.run is None}
        tools = [tool for tool in self._tools if tool.name in bare]
        return bind_tools(config, tools) if tools else config

    def _check_for_model(self, config: SessionConfig) -> None:
        config = config.checked()
        config.check_model(profile_of(self.provider, config))

    def _logged_config(self, state: SessionState, tools: Sequence[Tool] = ()) -> SessionConfig:
        """The configuration in the log, with the manager's tool functions and those of *tools*."""
        logged, newest = bytes(state.config), self._newest_logged
        if newest is not None and newest[0] == logged and not tools:
            return newest[1]
        config = bind_tools(logged_config(state.config), (*self._tools, *tools))
        config = self._services.shared(config)[0]
        if not tools:
            self._newest_logged = (logged, config)
        return config

    # Activation.

    @property
    def actors(self) -> tuple[Actor, ...]:
        """The actors that are live now."""
        return tuple(self._table.actors.values())

    def find_live(self, session: str) -> Actor | None:
        """The session's actor if it is live here; else None."""
        return self._table.actors.get(session)

    def open_calls(self, session: str) -> tuple[ToolUse, ...]:
        """The calls of a session that wait for their results; () if it is not live here."""
        actor = self.find_live(session)
        return actor.open_calls if actor is not None else ()

    async def activate(
        self,
        session: str,
        *,
        takeover: bool = False,
        tools: Sequence[Tool] = (),
        recovery: Recovery | None = None,
        unbound: Unbound = "warn",
    ) -> Actor:
        """The live actor of *session*. A cold session is loaded from the store.

        *tools*, *recovery* and *unbound* have an effect only if the session is loaded. Cancelling
        the wait does not stop the loading. Raises the errors of ``SessionManager.open``.
        """

        def bound(state: SessionState) -> SessionConfig:
            config = self._logged_config(state, tools)
            self._check_bound(session, unbound_tools(config, state.runners), unbound)
            return config

        async def load() -> Actor:
            # Check the log and the tools before the takeover: the present owner must not lose a
            # session that cannot be opened here.
            if takeover:
                with suppress(SessionNotFound):  # a session without a record is removed below
                    bound(await self._loader.peek(session))
            async with self._loader.acquired(session, takeover=takeover) as (state, lease):
                config = bound(state)
                records = recovery_records(state, recovery or config.recovery)
                await self._loader.write(state, lease, records)
                actor = await self._add(state, config, lease, state.runners)
            if actor.history_commands.excess is not None:
                await self.retain(actor)
            return actor

        return await self._table.activate(session, load, takeover=takeover)

    async def retain(self, actor: Actor, limits: HistoryLimits | None = None) -> None:
        """Let *actor* forget what exceeds *limits*, by default those of the session.

        Returns when that is erased. Nothing is done while a turn is open. Raises SessionClosed,
        SessionMoved and StoreError.
        """
        command = Retain(actor.mailbox.number(), None, limits)
        actor.put(command)
        await command.promise.wait()

    def retention_deleted(self, session: str, limit: str) -> None:
        """*session* was deleted because of *limit*: log it, and call the observers."""
        self.log(session).event("retention.deleted", limit=limit)
        self._services.observers.deleted(session, limit)

    def log(self, session: str = "") -> SessionLog:
        """The logger of *session*, or for events that concern no single session."""
        return SessionLog(self._logger, session, content=False)

    def _snapshot_ignored(self, session: str, why: str) -> None:
        self.log(session).trouble("snapshot.ignored", why=why)
        self._services.observers.snapshot_ignored(session, why)

    def _check_bound(self, session: str, names: tuple[str, ...], unbound: Unbound) -> None:
        if names and unbound == "raise":
            raise ToolsUnbound(session, names)
        if unbound == "warn" and not self._warned.issuperset(names):
            self._warned.update(names)
            log = SessionLog(self._logger, session, content=False)
            log.trouble("tools.unbound", tools=list(names))

    async def create(
        self, config: SessionConfig, session: str, records: Sequence[r.Record]
    ) -> Actor:
        """Create a session whose log is *records*. *config* was checked.

        Raises the errors of ``SessionManager.create``.
        """

        async def make() -> Actor:
            state, lease = await self._loader.create(session, records)
            return await self._add(state, config, lease)

        return await self._table.activate_new(session, make)

    async def fork(
        self,
        parent: str,
        point: ForkPoint,
        labels: dict[str, str],
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        config: SessionConfig | None = None,
        imported: Branch | None = None,
    ) -> Actor:
        """Create a session that continues from *point* of *parent*.

        *messages* are the parent's; the fork shares these objects. It runs with *config* or,
        without one, with the parent's configuration and *tools*. An *imported* branch is written
        completely or not at all. Raises the errors of ``LLMSession.fork``.
        """

        async def make() -> Actor:
            async with self._loader.forked(parent, point, labels, messages, imported=imported) as (
                state,
                lease,
            ):
                return await self._add(state, config or self._logged_config(state, tools), lease)

        return await self._table.activate_new(point.session, make)

    async def _add(
        self,
        state: SessionState,
        config: SessionConfig,
        lease: Lease,
        runners: Mapping[str, r.Runner] = MappingProxyType({}),
    ) -> Actor:
        """The live actor of a session that was created or loaded. *runners* ran its tools last.

        Raises StoreError if its tenant has a budget and the tenant's spending cannot be read, or if
        it was taken meanwhile.
        """
        await self.tenant_logs.load_budget(tenant_of(state.labels))
        self._table.check_held(lease)
        actor = Actor(
            state=state,
            config=config,
            store=self.store,
            lease=msgspec.structs.replace(lease, head=state.head),
            services=self._services,
            gone=self._table.remove,
        )
        actor.configuration.runners = runners
        self._table.add(actor)
        actor.core.account.tell_tenant()
        actor.turns.resume()
        actor.snapshots.write_if_due()
        self.evictor.activated()
        return actor

    def reactivation_queue(self, session: str) -> ReactivationQueue:
        """The queue for commands to a cold *session*. All handles of the session share it."""
        return self._reactivations.setdefault(session, ReactivationQueue())

    # Deactivation.

    async def evict(self, actor: Actor) -> bool:
        """Release a session if no handle refers to it and nothing is open. Returns whether it
        did.
        """
        return await self._table.evict(actor)

    async def evict_idle(self) -> int:
        """Release every session without a handle and with nothing open. Returns how many.

        A store in memory never waits, so the event loop gets its turn in between.
        """
        evicted = 0
        for number, actor in enumerate(self.actors):
            if number % EVICTED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            evicted += await self.evict(actor)
        return evicted

    def exclusive(self, session: str) -> AbstractAsyncContextManager[None]:
        """Until the body is left, no other task in this process creates, opens or releases
        *session*.
        """
        return self._table.exclusive(session)

    async def hand_over(self, session: str, when: HandOverWhen) -> Closed:
        """See ``SessionManager.hand_over``."""
        return await self._table.hand_over(session, when)

    async def delete(self, session: str) -> None:
        """Close the session if it is live here, and delete it for good.

        Raises SessionNotFound, StoreError.
        """
        actor = self.find_live(session)
        if actor is not None:
            await actor.put_close().wait()
        await self.store.delete(session)
        self.tenants.deleted(session)


def _checked_provider(provider: Provider, name: str) -> Provider:
    check_part(provider, name, "AnthropicProvider()", ("profile", "stream"))
    return provider


def _checked_store(store: Store) -> Store:
    check_part(store, "store", 'SqliteStore("sessions.db")', ("append", "read"))
    return store
