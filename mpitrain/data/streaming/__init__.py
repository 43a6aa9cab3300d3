"""Streaming of samples from the files in every epoch, for data larger than memory."""
