"""Where am I: launchers' variables, host lists, cores. Pure functions of a mapping; loads no torch and no MPI."""
