"""The live host: real processes, channels over TCP, a coordinator, and rollback."""

from strobe.runtime.ingress import IngressLog
from strobe.runtime.sinks import FileSink
from strobe.runtime.sources import FileSource

__all__ = ["FileSink", "FileSource", "IngressLog"]
