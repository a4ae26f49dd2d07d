"""Many sessions in real time, in this process or over a service."""
