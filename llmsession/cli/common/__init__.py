"""Code that several commands share: stores, services, exit codes, files, violations, formatting."""
