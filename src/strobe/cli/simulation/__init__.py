"""The commands that run a system or a protocol without a network: `simulate`, `explore`, `explain`, `matrix`.

In: a system of the user, a scenario or a mutant. Out: what the checkers found, with the command that repeats the run;
or the steps of the algorithm as diagrams. The work is in `strobe.simulation`.

Public: `explain`, `explore`, `matrix`, `simulate`.
"""
