"""One script for each peer, run in the peer's own environment; ``common`` is on its path there."""
