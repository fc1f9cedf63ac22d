"""The live coordinator: hosts the pure state machine of `strobe.protocol.coordinator`, and does its I/O.

In: messages from nodes (`control_server`, `node_sessions`), API requests (`operations`), the store's log. Out:
orders to nodes, log entries (`log_writer`, in `store_thread`), and the `status`.

Public: `control_server.ControlServer`, `coordinator.Coordinator`, `health_monitor`, `live_verdicts`,
`log_writer`, `node_sessions.NodeSessions`, `operations`, `status`.
"""
