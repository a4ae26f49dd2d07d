"""An HTTP server that refuses what the real APIs refuse. It can be run with ``python -m``."""
