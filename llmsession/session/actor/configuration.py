"""Changes of a session's configuration: made between turns, each on top of the one before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from llmsession.compaction.view.provider_blocks import is_sent_as_block
from llmsession.errors import InvalidConfig, SessionError
from llmsession.turns import records as r

from ..core.core import Core
from ..core.idempotency_keys import IdempotencyKeys
from ..values import commands as c
from ..values.config import SessionConfig, Tool, bind_tools, store_config, unbound_tools
from ..values.labels import with_max_age

__all__ = ["Configuration"]


class Configuration:
    """Performs the ``configure`` commands of one session. Those that arrive during a turn wait for
    its end.

    *changing* is called when a change is queued for the log, *changed* when it is durable.
    """

    def __init__(
        self,
        core: Core,
        keys: IdempotencyKeys,
        changing: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._keys = keys
        self._changing = changing
        self._changed = changed
        self._waiting: list[c.Configure] = []
        self._writing = 0
        self.runners: Mapping[str, r.Runner] = {}
        """Who ran each tool, by name, when the model called it last before the session was
        loaded.
        """

    @property
    def unbound_tools(self) -> tuple[str, ...]:
        """The tools that the session ran before it was loaded and that have no function now."""
        return unbound_tools(self._core.config, self.runners)

    @property
    def is_idle(self) -> bool:
        """Is no change being written? A change may alter what the context shows."""
        return not self._writing

    def configure(self, command: c.Configure, *, now: bool) -> None:
        """Change the configuration: at once if *now* is True, else when the running turn has ended.

        Raises InvalidConfig.
        """
        if not now:
            self._waiting.append(command)
            return
        config = replace(self._core.config, **command.changes).checked()
        self._check_tools(config)
        if command.changes.keys() & {"model", "budget", "compaction"}:
            self._core.services.check_priced(config, self._core.account.tenant)
        old, new = self._core.config.frame(), config.frame()
        changed = (old.model, old.system, old.tools) != (new.model, new.system, new.tools)
        record = r.SessionConfigured(
            config=store_config(config),
            voids_thinking=changed or self._shows_otherwise(config),
            commands=c.remembered(command.command_id, command.digest, None),
        )
        self._core.configure(config)
        self._label_age(config)
        answer = self._keys.answer(command)

        def configured() -> None:
            self._writing -= 1
            answer()
            self._changed()

        self._writing += 1
        self._changing()
        self._core.journal.write(record, configured)

    def _label_age(self, config: SessionConfig) -> None:
        """Update the label that repeats the age limit of *config*."""
        labels = with_max_age(self._core.labels, config.max_age_s)
        if labels != self._core.labels:
            self._core.relabel(labels)

    def _shows_otherwise(self, config: SessionConfig) -> bool:
        """Does *config* change how the provider's summary at the start of the context is sent?

        It is sent either as text or as the provider's own block. A change alters the prefix that
        later thinking is signed for.
        """
        profile, prefix_summary = self._core.builder.profile, self._core.state.view.prefix_summary
        frames = (self._core.config.frame(profile), config.frame(profile))
        old, new = (is_sent_as_block(prefix_summary, profile, frame) for frame in frames)
        return old != new

    def _check_tools(self, config: SessionConfig) -> None:
        # Providers refuse a request with tool calls but without tools, so every later turn would
        # fail.
        messages = self._core.state.context_messages()
        if not config.frame().tools and any(message.tool_calls for message in messages):
            raise InvalidConfig(
                "tools is empty, but the history has tool calls, and providers refuse such a"
                " request; keep at least one tool, or clear the session first"
            )

    def apply_waiting(self) -> None:
        """Make the changes that waited for the turn's end, in order. Called between two turns."""
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            try:
                self.configure(command, now=True)
            except SessionError as error:  # it is invalid after an earlier change in the queue
                self._keys.refuse(command, error)

    def refuse_waiting(self, error: SessionError) -> None:
        """The session ends: answer the waiting changes with *error*."""
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self._keys.refuse(command, error)

    def bind(self, tools: Sequence[Tool]) -> None:
        """Bind the functions of *tools* to the configured tools of the same names. Raises
        InvalidConfig.
        """
        self._core.configure(bind_tools(self._core.config, tools))
