"""One process of a live system: its event loop, its protocol, its channels, its fragment of each snapshot.

`host` handles the coordinator's orders and begins a `timeline` per epoch: the process, its protocol and its links from
one rollback to the next. `application` runs a user's `Process`, `own_loop_application` a program with its own event
loop. In: frames and the coordinator's orders. Out: frames, and fragments written to the store.

Public: `application.ProcessApplication`, `host`, `own_loop.Node`.
"""
