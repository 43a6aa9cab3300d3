"""Ranks that meet over TCP: where, behind which secret, and in which form objects travel."""
