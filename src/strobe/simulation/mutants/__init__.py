"""Protocols and hosts with one rule broken each (P4). The checkers must catch each of them."""
