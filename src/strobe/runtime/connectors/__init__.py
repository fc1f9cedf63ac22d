"""File I/O of a live system: `system.toml`, sources, sinks, and the ingress log (R2).

A source can be rewound to a position. A sink stages output with a snapshot and releases it after the commit. Input that
cannot be rewound goes through the ingress log first.
"""
