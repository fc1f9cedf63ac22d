"""Commands for the first hour: `init` writes a project, `doctor` checks this machine.

In: a name, or a store to look at. Out: files that run as they are; findings with what to do.
"""
