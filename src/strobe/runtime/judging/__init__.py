"""Evaluates the conditions that a system declares, on every committed snapshot (E12).

`evaluation` does it; `judge_process` runs it in a child process, so that a user's function that hangs or crashes costs
the coordinator nothing.
"""
