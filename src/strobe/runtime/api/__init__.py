"""The coordinator's HTTP API and what it is put together from: routes, metrics, discovery, a client.

`service` is `strobe coordinator` as a whole.
"""
