"""Parts of sources that are the same for every network."""
