"""`python -m strobe.cli` is `strobe`."""

import sys

from strobe.cli import main

sys.exit(main())
