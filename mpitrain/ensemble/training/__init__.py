"""The training of members: shared samples, groups of ranks that claim members, and the run of each member."""
