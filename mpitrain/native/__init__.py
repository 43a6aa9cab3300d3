"""The C++ reference program: finding its sources and tools, building and running it."""
