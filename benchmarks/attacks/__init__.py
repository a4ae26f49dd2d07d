"""Attacks on a service as bounded loads, and what they cost everybody else.

``python -m benchmarks.attacks [NAME...] [--seconds S]`` runs each attack at a lower priority
against a service in a process of its own, beside a client that behaves.
"""
