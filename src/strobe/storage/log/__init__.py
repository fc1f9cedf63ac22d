"""The log as a whole: appending entries one after the other, following it as it grows, its terms and its end (S1).

In: entries from one of several writers. Out: the same entries in the same order for every reader, and why the log
cannot be read further, if so. `log` appends and reads, `follower` reads on, `log_end` and `terms` detect lost or
foreign entries.

Public: `commit_reader.CommitReader`, `follower`, `log`, `log_end`, `terms.Terms`.
"""
