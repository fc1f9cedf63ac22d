"""The messages of a live system, as plain values: control messages, API documents, verdicts.

`control` is the protocol between coordinator and nodes. `api_documents` are the bodies of the HTTP API. `verdicts`
are the results of declared conditions. In: bytes of MessagePack or JSON. Out: checked values, and back. No I/O
happens here.

Public: `api_documents`, `control`, `verdicts`.
"""
