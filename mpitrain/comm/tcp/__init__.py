"""Rendezvous of the ranks over TCP: its address, its secret, and the format in which objects are sent."""
