/* Nothing: parts.c needs no MPI. */
