// What the engine calls, for a network of fields: FIELD_SIZE and the other macros of field_graph.hpp describe it.
#include "field_batch.hpp"
// The rest is the same for all networks, and finds this one known.
#include "dense_network.cpp"
