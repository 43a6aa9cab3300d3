"""The training of members: shared samples, groups that claim them, one corridor for each."""
