"""Job scripts for schedulers, and the process that a script starts inside the job. Loads no torch and no MPI."""
