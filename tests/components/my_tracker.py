"""A tracker of a user: lines of text in the run folder."""


class Lines:
    """Write a line an epoch, and one at the end."""

    def __init__(self, folder, settings, name="lines.txt"):
        self.file = (folder / name).open("a")
        self.file.write(f"{settings['training.optimizer.type']} {settings['seed']}\n")

    def log(self, step, values):
        """Write the losses of an epoch."""
        self.file.write(f"{step} {values['train_loss']:.6f}\n")

    def finish(self, step, values):
        """Write what the run came to."""
        self.file.write(f"{step} {values['weights_sha256']}\n")

    def close(self, outcome):
        """Close the file."""
        self.file.write(f"{outcome}\n")
        self.file.close()
