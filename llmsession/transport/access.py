"""Tokens of a service, and who may listen where. The documented path."""

from .server.access import TokenFile, check_exposed, check_token_is_safe, token_hash

__all__ = ["TokenFile", "check_exposed", "check_token_is_safe", "token_hash"]
