"""Files, selection, partition, statistics and batches: numbers on their way to the network."""
