"""File I/O of a live system: `system.toml`, sources, sinks, and the ingress log (R2).

In: `system.toml`, and records of the outside world. Out: a system with its settings, and staged output. A source can
be rewound to a position. A sink stages output with a snapshot and releases it after the commit. Input that cannot be
rewound goes through the ingress log first.

Public: `file_sink.FileSink`, `file_source.FileSource`, `ingress_log.IngressLog`, `system_file`.
"""
