"""A writer in a process of its own, whose files may not grow beyond a limit: a disk that is really full.

`python -m tests.storage.limited_writer DIRECTORY BYTES` prints the error that it gets.
"""

import resource
import signal
import sys

from tests.storage.samples import begin

from strobe.errors import StoreError
from strobe.storage import Store


def main(url: str, limit: int) -> None:
    store = Store.open(url)
    snapshot = begin(store, 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        store.write_blob(snapshot, bytes(10 * limit))
    except StoreError as error:
        sys.stdout.write(f"{error.exit_code} {error}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
