"""What every command shares: the list of commands, output, waiting, logging.

Everything that a command prints goes through `output`. `commands` imports each command when it is
used, so that `strobe --help` is fast.
"""
