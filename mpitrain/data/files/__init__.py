"""Readers of data files; all implement the protocol `FieldFile`."""
