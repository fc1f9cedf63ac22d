"""`python -m strobe` is the command `strobe`."""

import sys

from strobe.cli import main

sys.exit(main())
