"""Commands for the first hour: `init` writes a project, `doctor` checks this machine.

In: the name of a directory, or a store to look at. Out: files that run as they are; or what is missing here, with what
to do about it, and an exit code.

Public: `doctor`, `init`.
"""
