"""What a hostile run folder would have run: importing this leaves a trace."""

import os
from pathlib import Path

from torch import nn

Path(os.environ["TRACE_OF_STRANGERS"]).touch()


def make(num_inputs: int, num_outputs: int) -> nn.Module:
    """A network like any other."""
    return nn.Linear(num_inputs, num_outputs)
