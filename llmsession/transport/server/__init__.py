"""One manager for many clients: admission, connections, subscriptions, sockets."""
