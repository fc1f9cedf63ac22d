"""The commands that run a system without a network: `simulate`, `explore`, `explain`, `matrix`."""
