"""The coordinator's decisions, as a pure state machine: when to snapshot, who is a member, when to roll back.

`lifecycle` takes the events of `messages` and returns its effects.
"""
