"""A program that appends numbers to an ingress log without end, and prints the position of each."""

import sys
from itertools import count

from strobe.runtime import IngressLog

if __name__ == "__main__":
    log = IngressLog(sys.argv[1])
    for number in count():
        print(log.append(number), flush=True)  # noqa: T201 -- read by the test
