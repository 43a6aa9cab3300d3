"""The C++ reference program: find its sources and tools, build it, run it."""
