"""The coordinator's HTTP API: routes, metrics, discovery and a client.

`service` is the whole of `strobe coordinator`.
"""
