"""`strobe explain`: small scripted runs of the real protocol classes, drawn as space-time diagrams (R6)."""
