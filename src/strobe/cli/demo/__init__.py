"""`strobe demo`: a bank of real processes, one of them killed, every snapshot judged by Spark.

In: nothing but a directory. Out: a store, the verdict on each snapshot, and the commands to continue with. `bank` is
the user's code, `judge` the streaming pipeline beside it.

Public: `demo`.
"""
