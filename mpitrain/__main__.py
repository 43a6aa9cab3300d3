"""Entry point of `python -m mpitrain` and of the command `mpitrain`."""

import sys


def run() -> int:
    """Run the command line and return the exit code. An interrupt prints one line, also while modules are loading."""
    try:
        from mpitrain.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("mpitrain: error: interrupted\n")
        return 130  # the shells' convention: 128 + signal number


if __name__ == "__main__":
    sys.exit(run())
