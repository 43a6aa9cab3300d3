"""`python -m mpitrain`."""

import sys

from mpitrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
