"""The live coordinator: hosts the pure state machine of `strobe.protocol.coordinator`, and does its I/O.

In: messages of nodes (`control_server`, `node_sessions`), requests of people (`operations`), the store's log. Out:
orders to nodes, entries of the log (`log_writer`, in `store_thread`), and a `status` for people.
"""
