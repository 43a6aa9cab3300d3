"""Networks and weights in files."""
