"""Identity of the CPU, queried from the CPU itself, and compiler flags for it. Imports no large package."""
