"""Token estimates of texts, messages and requests."""
