"""Sessions as actors.

In: commands from handles, events from providers and tools. Out: records to the store, events to
subscribers, answers to callers. Absent: sockets, SQL and provider SDKs.
"""
