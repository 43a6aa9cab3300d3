"""The command `bench`, an action a module."""
