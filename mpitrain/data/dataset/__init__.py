"""The samples of one run: split, shared out to the ranks, normalised, in batches."""
