// The functions that the engine calls, for a network on fields, described by the macros of field_graph.hpp.
#include "field_batch.hpp"
// The rest is the same for all networks, and uses the definitions above.
#include "dense_network.cpp"
