"""The shared value types: snapshot ids, frames, views, fragments, log entries.

In: fields, from code or decoded from bytes. Out: immutable values, or an error that names the invalid field. They
depend on no protocol.

Public: `bounds`, `fragment`, `frames`, `ids`, `log_entries`, `view`.
"""
