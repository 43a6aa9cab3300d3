"""A trained network as source code: pure functions from an `Emulator` to the text of files, by name."""
