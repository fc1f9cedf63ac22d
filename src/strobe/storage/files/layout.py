"""The names of the files and directories of a store (docs/format.md)."""

HEADER = "strobe.json"
LOG = "log"
BLOBS = "blobs"
CHECKPOINTS = "checkpoints"
UNFINISHED = "tmp"
DIRECTORIES = (LOG, BLOBS, CHECKPOINTS, UNFINISHED)

RESTARTS = "restarts"
"""Hand-overs of processes that restart, and the claims of their successors (E11). Made when it is first needed."""

ASIDE = "aside"
"""Files that `strobe store repair` has moved out of the log: in the same directory, but not part of the store."""
RUN = "run"
"""Addresses, logs and traces of the programs that run the system: in the same directory, but not part of the store."""

CREATE_HINT = "make a store: `strobe up SYSTEM --create`, or Store.create"
