"""A network of a user: two dense layers and a shortcut from inputs to outputs."""

import torch


class Shortcut(torch.nn.Module):
    """outputs = direct(inputs) + second(tanh(first(inputs)))."""

    def __init__(self, num_inputs, num_outputs, width=8):
        super().__init__()
        self.first, self.second = torch.nn.Linear(num_inputs, width), torch.nn.Linear(width, num_outputs)
        self.direct = torch.nn.Linear(num_inputs, num_outputs)

    def forward(self, inputs):
        """Return outputs (samples, num_outputs) for inputs (samples, num_inputs)."""
        return self.direct(inputs) + self.second(torch.tanh(self.first(inputs)))
