"""What maintainers run; no part of the package."""
