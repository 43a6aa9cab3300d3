"""What people do with data files outside of a training: look into them, sum them up, convert them, draw maps."""
