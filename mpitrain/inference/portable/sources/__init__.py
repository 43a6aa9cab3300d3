"""Parts of the C sources that are the same for all networks."""
