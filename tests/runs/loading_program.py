"""The public command, as one of the ranks, which notes in the folder NOTES what it had loaded at its end.

`python loading_program.py NOTES ARGUMENTS...`
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from mpitrain.cli.main import main

if __name__ == "__main__":
    note = Path(sys.argv.pop(1)) / f"loaded-{os.environ['PMI_RANK']}"
    atexit.register(lambda: note.write_text(" ".join(sys.modules)))
    sys.exit(main())
