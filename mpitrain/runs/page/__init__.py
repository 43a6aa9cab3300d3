"""The page of a run: what is told of the network that it trained."""
