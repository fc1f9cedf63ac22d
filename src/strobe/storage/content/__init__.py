"""The content of a snapshot: blobs named by their hash, states, frames in flight, and the manifest."""
