"""What every command shares: the list of commands, output, waiting, logging.

In: results of commands, and errors. Out: tables, text or JSON on stdout, notes on stderr: everything that a command
prints goes through `output`. `commands` imports each command when it is used, so that `strobe --help` is fast.

Public: `commands`, `logging_setup`, `long_calls`, `output`, `waiting`.
"""
