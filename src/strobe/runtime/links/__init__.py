"""The channels between nodes: one TCP connection per directed channel, frames in order, credit back.

In: frames that a process sends (`frame_builder`, `outgoing_link`), and connections of peers (`listener`). Out: each
frame exactly once and in order, at the target's `incoming_link`. Connections may break at any moment: in the
`handshake`, both ends agree on the sequence number to go on from. `codec` is the format on the wire.
"""
