"""`strobe explain`: small scripted runs of the real protocol classes, drawn as space-time diagrams (R6).

In: scripts (`explanations`, `barrier_scenes`) that make things happen on a `stage`, or a counterexample of the
explorer. Out: moments, each with the rule it follows, and `diagram` draws them.

Public: `barrier_stage.BarrierStage`, `diagram`, `explanations`, `stage`.
"""
