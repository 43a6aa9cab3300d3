"""Who is missing: a watchdog over the collectives, and the report that names the rank."""
