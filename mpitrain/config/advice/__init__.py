"""Notes on valid settings: which have no effect, what each one means, and defaults that depend on the samples."""
