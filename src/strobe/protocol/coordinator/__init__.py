"""The coordinator's decisions, as a pure state machine: when to snapshot, who is a member, when to roll back.

`Lifecycle` takes the events defined in `messages` and returns the effects defined there.
"""
