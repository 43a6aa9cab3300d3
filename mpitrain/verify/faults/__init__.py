"""Mistakes that people make in such programs, each put into one stage of a run: the proof must see them."""
