"""Sees that a request is valid by one look at each new message, without asking every rule."""

from __future__ import annotations

from llmsession.turns.request import Profile, Request

from ..view.prefix import shared_prefix
from .message_facts import MessageFacts, ToolFacts

__all__ = ["FastPath"]


class FastPath:
    """The requests of one session, one after the other. Nearly all of them are plain.

    A request is plain if user and assistant alternate from the user to the user, if the results of
    each message answer exactly the calls of the message before, and if no message is ``notable``.
    Then only the rules about options and tools can be broken. These are not asked again while the
    options and the tools are the same objects as in the last valid request.
    """

    __slots__ = (
        "_call_count", "_call_ids", "_has_calls", "_max_tokens", "_messages", "_options", "_plain",
        "_profile", "_tools",
    )  # fmt: skip

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._messages: list[MessageFacts] = []
        self._plain = 0
        """How many of the messages at the beginning were looked at and are plain."""
        self._call_ids: set[str] | None = None
        """The ids of their calls, of which there are ``_call_count``; None without any."""
        self._call_count = 0
        self._options: object = None
        self._tools: ToolFacts | None = None
        self._max_tokens = 0
        self._has_calls = False

    def is_valid(self, request: Request, messages: list[MessageFacts], tools: ToolFacts) -> bool:
        """Is *request*, with *messages* and *tools*, plain and beside its messages like the last
        valid one? False does not say that a rule is broken: then the rules have to be asked.
        """
        return (
            request.options is self._options
            and tools is self._tools
            and request.max_tokens == self._max_tokens
            and self._are_plain(messages)
            and self._has_calls is (self._call_count > 0)
        )

    def found_valid(self, request: Request, messages: list[MessageFacts], tools: ToolFacts) -> None:
        """The rules found nothing in *request*, with *messages* and *tools*."""
        if self._are_plain(messages) and not self._profile.thinking_opens_tool_loop:
            self._options, self._tools = request.options, tools
            self._max_tokens, self._has_calls = request.max_tokens, self._call_count > 0

    def _are_plain(self, messages: list[MessageFacts]) -> bool:
        plain, count = self._plain, len(messages)
        # The same list has only grown since (see FactsCache).
        if messages is not self._messages and shared_prefix(self._messages, messages) < plain:
            plain, self._call_ids, self._call_count = 0, None, 0
        self._messages = messages
        calls = messages[plain - 1].call_ids if plain else ()
        for facts in messages[plain:] if plain else messages:
            role = "assistant" if plain % 2 else "user"
            if facts.notable or facts.role != role or facts.result_ids != calls:
                break
            calls = facts.call_ids
            if calls:
                self._call_ids = known = self._call_ids or set()
                known.update(calls)
                self._call_count += len(calls)
            plain += 1
        self._plain = plain
        return (
            plain == count
            and plain % 2 == 1
            and plain <= self._profile.max_messages
            and self._call_count == len(self._call_ids or ())
        )
