"""Where a conversation may be cut, for those who write a policy. The documented path."""

from .planning.boundaries import *  # noqa: F403  # a face: all names of the module
