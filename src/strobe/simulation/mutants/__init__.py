"""Protocols and hosts with one rule broken each (P4). Every checker must catch those it is for."""
