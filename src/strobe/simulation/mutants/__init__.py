"""Protocols and hosts with one rule broken each (P4). The checkers and the explorer must catch each of them.

In: nothing. Out: classes to run instead of the right ones. `catalog` lists all of them: the rule each breaks, the
world it runs in, and the checkers that must catch it. The classes are beside it: of protocols, of barriers, of hosts.

Public: `barrier_mutants`, `catalog`, `protocol_mutants`.
"""
