"""One program, a process of the operating system, that runs one process of a system or many.

`shared_parts` has what all of them share, and `host_group` runs several hosts together. In: hosts, and jobs for the
writer thread. Out: the exit code of the program, and the results of the jobs.

Public: `host_group`, `shared_parts.SharedParts`, `writer_thread.WriterThread`.
"""
