"""What every command shares: the list of commands, output for people and programs, signals, logging."""
