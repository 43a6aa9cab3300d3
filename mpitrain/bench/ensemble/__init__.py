"""Many networks in one world, against one launch for each, and against loops over plain PyTorch."""
