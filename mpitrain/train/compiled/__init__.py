"""The engine that compiles its step for the sizes of the network, and the C++ that it compiles."""
