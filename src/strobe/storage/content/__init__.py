"""What a snapshot is made of: blobs named by their content, states, frames in flight, and the manifest over all."""
