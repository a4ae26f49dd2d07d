"""Benchmarks: each beside a bare baseline in the same run, reported as a ratio.

``python -m benchmarks`` runs all of them and exits 1 if a stated bound is exceeded. Machines are
shared and noisy, so only ratios are compared, and each is the median of several rounds.
"""
