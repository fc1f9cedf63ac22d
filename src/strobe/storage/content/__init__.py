"""The content of a snapshot, and its files: states, frames in flight, the manifest, blobs named by their hash (S2).

In: a `Snapshot` from a coordinator, or states from a process. Out: blobs and a manifest for its commit entry, and
back. Bytes from a store are never trusted: everything is verified when it is read.

Public: `blobs`, `frames_blob`, `keyed_state_blobs`, `manifest_check`, `manifests`, `state_codec`, `summaries`.
"""
