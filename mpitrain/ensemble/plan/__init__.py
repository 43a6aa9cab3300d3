"""The plan of an ensemble: its members, their settings and their estimated cost."""
