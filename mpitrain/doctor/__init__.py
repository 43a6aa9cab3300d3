"""`mpitrain doctor`: checks of the environment, the launch and the user's input, each with a fix if it fails."""
