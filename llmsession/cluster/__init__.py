"""Sessions over several hosts that share one PostgreSQL store."""

from .placement import Host, View, host_of

__all__ = ["Host", "View", "host_of"]
