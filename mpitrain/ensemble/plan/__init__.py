"""What is trained: the members, their settings and cost, and which of them go on. Pure functions of the settings."""
