"""C++ sources that are compiled for one network when a run starts."""
