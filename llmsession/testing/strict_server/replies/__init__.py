"""A reply as server-sent events, as chunks, or as one JSON document."""
