"""Set when a long call was reported. A system's own modules are loaded anew for each run, this one is not."""

import threading

reported = threading.Event()
