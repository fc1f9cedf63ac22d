"""The coordinator's decisions, as a pure state machine: when to snapshot, who is a member, when to roll back.

In: the events defined in `messages`: entries read back from the log, reports of processes, requests, time. Out: the
effects defined there: entries to append, orders to processes. `Lifecycle` takes and returns them.

Public: `lifecycle.Lifecycle`, `membership.Membership`, `memory`, `messages`, `policy`, `restart_messages`,
`rollback`.
"""
