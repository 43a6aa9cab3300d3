"""Many training runs in one world: members, groups of ranks, folds, sweeps, what comes out of them together."""
