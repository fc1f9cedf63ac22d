"""Shared by all commands: the list of commands, output, signals, logging."""
