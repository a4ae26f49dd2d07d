"""OpenTelemetry spans of turns, requests and tools. The documented path."""

from .hosting.tracing import Tracing

__all__ = ["Tracing"]
