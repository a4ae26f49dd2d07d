"""A soak: ``python -m benchmarks.soak``. A real service under mixed load for an hour, with faults.

In: a plan, all of it from a seed but the timing. Out: figures of the service over the time, and
what broke: something that grew, a turn without its end, a log that is not whole, a request that
the strict model server refused. Figures are Linux's; elsewhere memory and handles are not known.
"""
