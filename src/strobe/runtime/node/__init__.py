"""One process of a live system: its event loop, its protocol, its channels, its part of each snapshot.

`host` answers the coordinator and begins a `timeline` for each epoch: the process, its protocol and its links from one
rollback to the next. `application` runs a user's `Process`, `own_loop_application` a program with a loop of its own.
In: frames and the coordinator's orders. Out: frames, and fragments written to the store.
"""
