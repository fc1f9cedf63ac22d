"""The commands that inspect and maintain a store: `snapshot`, `keys`, `store repair`."""
