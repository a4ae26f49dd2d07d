"""Where a conversation may be cut, and what a rewrite of the prompt costs and saves."""
