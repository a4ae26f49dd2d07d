"""Sessions over several hosts that share one PostgreSQL store: see docs/how-to/run-a-cluster.md."""

from .clients import connect_cluster
from .placement import Host, View, host_of

__all__ = ["Host", "View", "connect_cluster", "host_of"]
