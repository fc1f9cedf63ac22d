"""What commands get as arguments: a system, a store, the options of a live run, a running coordinator.

In: text from the command line. Out: the thing itself, checked, or an error that says what to write instead. A system
is also checked before it runs (`start_check`).

Public: `live_options`, `start_check`, `stores`, `systems`.
"""
