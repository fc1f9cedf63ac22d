"""The commands that look at a store and look after it: `snapshot`, `keys`, `store repair`."""
