"""The samples of one run: their split, distribution over the ranks, normalisation and batches."""
