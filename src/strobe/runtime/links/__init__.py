"""The channels between nodes: one TCP connection per directed channel, with credit-based flow control.

In: the frames of the local process (`frame_builder`, `outgoing_link`), and connections from peers (`listener`). Out:
each frame exactly once and in order, at the target's `incoming_link`. A connection may break at any moment. On
reconnect, both ends agree on the next sequence number in the `handshake`. `codec` is the wire format.

Public: `codec`, `frame_builder.OpenFrame`, `frame_checks.FrameChecks`, `handed_over_ends`, `handshake`,
`incoming_link.IncomingLink`, `listener.Listener`, `memory_connection.MemoryConnections`, `message_decoding`,
`outgoing_connection`, `outgoing_link.OutgoingLink`, `receive_buffers`.
"""
