"""What a run leaves so that it can be trained again, and training it again."""
