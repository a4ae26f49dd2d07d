"""Values and arithmetic: requests, tokens, the prompt cache, usage, refusals, faults."""
