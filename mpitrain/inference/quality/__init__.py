"""Quality of a network: outputs, errors, and skill on held-out and test samples."""
