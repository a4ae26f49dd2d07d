"""Token counting: vocabularies, threads, the network."""
