"""Keys of other trainers and of the C++ program, and their translation to current keys."""
