"""`python -m mpitrain`, and the command `mpitrain`."""

import sys


def run() -> int:
    """Run the command line's command; return the exit code. An interrupt is one line, also while modules are loaded."""
    try:
        from mpitrain.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("mpitrain: error: interrupted\n")
        return 130  # as shells count: 128 and the signal's number


if __name__ == "__main__":
    sys.exit(run())
