"""The live coordinator: hosts the pure state machine of `strobe.protocol.coordinator`, and does its I/O.

Input: messages from nodes (`control_server`, `node_sessions`), API requests (`operations`), the store's log. Output:
orders to nodes, log entries (`log_writer`, in `store_thread`), and the `status`.
"""
