"""An HTTP server that refuses what the real APIs refuse: a package that can be run with ``-m``."""
