"""Which CPU this process runs on, asked of the CPU itself, and what a compiler may use of it. Loads nothing heavy."""
