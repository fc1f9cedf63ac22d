"""The coordinator's HTTP API: routes, metrics, discovery and a client.

In: HTTP requests. Out: JSON documents (`strobe.runtime.messages.api_documents`), described by OpenAPI; requests
become operations of the coordinator. `service` is the whole of `strobe coordinator`.

Public: `client`, `discovery`, `service.CoordinatorService`.
"""
