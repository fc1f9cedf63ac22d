"""The values that everything else is made of: snapshot ids, frames, views, fragments, entries of the log.

They are immutable, they check themselves, and they know no protocol.
"""
