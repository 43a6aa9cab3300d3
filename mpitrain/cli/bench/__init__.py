"""The command `bench`: one module per action."""
