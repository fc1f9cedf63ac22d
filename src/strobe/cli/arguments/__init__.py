"""Shared arguments of commands: a system, a store, the options of a live run, a running coordinator."""
