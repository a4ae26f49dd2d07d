"""Which sessions are live: loading, forking, reactivating, evicting."""
