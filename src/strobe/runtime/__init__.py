"""The live host: real processes, channels over TCP, a coordinator, and rollback.

In: a system and its settings. Out: its processes run, and the store gets a proven snapshot again and again.
`api.service` is a coordinator, `node.host` a process.
"""

from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.connectors.ingress_log import IngressLog

__all__ = ["FileSink", "FileSource", "IngressLog"]
