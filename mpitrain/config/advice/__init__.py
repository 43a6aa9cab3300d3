"""What is said of settings beside what is wrong with them: which have no effect, and what each one is."""
