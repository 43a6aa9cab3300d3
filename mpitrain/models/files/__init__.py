"""Models as files: what an archive of torch holds, read without running any of it."""
