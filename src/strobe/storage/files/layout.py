"""The names of the files and directories of a store (docs/format.md)."""

HEADER = "strobe.json"
LOG = "log"
BLOBS = "blobs"
CHECKPOINTS = "checkpoints"
UNFINISHED = "tmp"
DIRECTORIES = (LOG, BLOBS, CHECKPOINTS, UNFINISHED)

ASIDE = "aside"
"""Files that `strobe store repair` has moved out of the log: in the same directory, but not part of the store."""
RUN = "run"
"""Addresses, logs and traces of the programs that run the system: in the same directory, but not part of the store."""

CREATE_HINT = "make a store: `strobe up SYSTEM --create`, or Store.create"
