"""Keys of other trainers and of the C++ program: which they are, and how they are read."""
