"""The commands of a live system: `up`, `coordinator`, `node`, `leave`, `restore`."""
