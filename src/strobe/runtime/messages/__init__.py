"""What programs of a live system send each other, as values: control messages, API documents, verdicts.

`control` is the protocol between coordinator and nodes; `api_documents` what the HTTP API takes and returns; `verdicts`
the results of the conditions that a system declares. No sockets here, and nothing that runs.
"""
