"""Set when a long call was reported. A system's own modules are loaded for each run, this one only once."""

import threading

reported = threading.Event()
