"""Sessions over several hosts that share one PostgreSQL store."""

from .clients import connect_cluster
from .placement import Host, View, host_of

__all__ = ["Host", "View", "connect_cluster", "host_of"]
