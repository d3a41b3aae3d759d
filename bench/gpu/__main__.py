"""The command ``python -m bench.gpu``."""

import sys

from bench.gpu import main

sys.exit(main())
