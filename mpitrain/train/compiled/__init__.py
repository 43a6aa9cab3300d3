"""The engine with a training step that is compiled for the sizes of the network, and its C++ sources."""
