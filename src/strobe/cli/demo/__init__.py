"""`strobe demo`: a bank of real processes, one of them killed, every snapshot judged by Spark."""
