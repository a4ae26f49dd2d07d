"""Messages, errors, framing, addresses and TLS files: no sessions, no sockets of its own."""
