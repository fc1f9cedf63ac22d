"""The snapshot protocols of one process, as pure state machines: `handle(event)` returns effects.

`endpoint` is their common base; `registry` lists them by name. The duties of a host are in `strobe.protocol`.
"""
