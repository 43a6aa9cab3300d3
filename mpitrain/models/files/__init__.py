"""Networks and weights in files. What an archive of torch holds is read without running any of it."""
