"""Prometheus metrics of a service and its sessions. The documented path."""

from .hosting.metrics import Metrics

__all__ = ["Metrics"]
