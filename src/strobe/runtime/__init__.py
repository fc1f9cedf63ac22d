"""The live host: real processes, channels over TCP, a coordinator, and rollback."""

from strobe.runtime.connectors.file_sink import FileSink
from strobe.runtime.connectors.file_source import FileSource
from strobe.runtime.connectors.ingress_log import IngressLog

__all__ = ["FileSink", "FileSource", "IngressLog"]
