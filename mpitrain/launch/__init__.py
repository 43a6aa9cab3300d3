"""Job scripts: a request in, a short script out; and inside of the job, what the script starts. No torch, no MPI."""
