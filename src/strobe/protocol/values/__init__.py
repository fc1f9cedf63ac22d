"""The shared value types: snapshot ids, frames, views, fragments, log entries.

They are immutable, validate themselves, and depend on no protocol.
"""
