"""Evaluates the conditions that a system declares, on every committed snapshot (E12).

In: a system and the positions of commits. Out: a verdict for each condition. `evaluation` computes the verdicts:
`conservation` those of `conserved`, `predicate_verdicts` those of stable predicates. `judge_process` runs it in a child
process, so that a user's function that hangs or crashes does not affect the coordinator.

Public: `evaluation`, `questions`, `judge_process.Judge`.
"""
