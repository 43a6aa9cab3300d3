"""An export format of a user: names and shapes of the numbers, and the answers for the first input, as text."""


def as_text(network, path, inputs):
    """Write the network to a file."""
    lines = [f"{name} {tuple(one.shape)}" for name, one in network.state_dict().items()]
    path.write_text("\n".join([*lines, f"{network(inputs[:1])[0, 0].item():.6f}"]))


def fails(network, path, inputs):
    """Fail."""
    raise RuntimeError("no such network")
