"""What a conversation is made of, and the pure machine that decides what a turn does next.

In: facts about one turn. Out: the next turn and the effects to perform.
Absent: async, clocks, I/O and randomness.
"""
