"""What the model is sent, and how it is kept inside the window.

In: history, a view of it, and a profile. Out: a request, its size, its faults, and plans.
Absent: async and I/O; history is never changed here.
"""
