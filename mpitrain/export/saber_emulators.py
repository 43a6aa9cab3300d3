"""TorchScript modules with the attributes and methods that SABER's TorchBalance blocks call.

N  nodes      F  input columns      O  output columns (levels of one variable)      p  requested entries of a Jacobian
"""

from dataclasses import dataclass

# Annotations are not postponed here: TorchScript compiles them.
import torch
from torch import nn

from mpitrain.models.jacobian import output_gradients

CONTRACT_VERSION = "SABER TorchBalance, November 2026"


@dataclass(frozen=True)
class SaberMask:
    """Condition for unmasked nodes: the value of `variable` is finite and in [`low`, `high`].

    The value is input column `column`, or, if that is -1, the field that SABER passes, which it finds by the variable's
    name. If `variable` is "", nodes are unmasked if the value that SABER passes is finite and not 0.
    """

    variable: str = ""
    low: float = 0.0
    high: float = 1.0
    column: int = -1


@dataclass(frozen=True)
class SaberNames:
    """Names and levels as used by the model that calls the emulator.

    Surface: one name and level for each of the F inputs, and for the one output. Vertical: one name for each input
    variable, in the order of its block of columns; levels are empty.
    """

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_levels: tuple[int, ...] = ()
    output_levels: tuple[int, ...] = ()


class SaberEmulator(nn.Module):
    """Base class of both emulators: names, levels, and the network in physical units."""

    typical_inputs: torch.Tensor

    def __init__(
        self, network: nn.Module, input_mean: torch.Tensor, names: SaberNames, mask: SaberMask = SaberMask()
    ) -> None:  # fmt: skip
        super().__init__()
        self.network = network
        # A separate copy: the network's own buffers may belong to several members.
        self.register_buffer("typical_inputs", input_mean.detach().clone())
        # Typed for TorchScript, which infers an empty list to be a list of tensors.
        self.input_names = torch.jit.Attribute(list(names.input_names), list[str])
        self.output_names = torch.jit.Attribute(list(names.output_names), list[str])
        self.input_levels = torch.jit.Attribute(list(names.input_levels), list[int])
        self.output_levels = torch.jit.Attribute(list(names.output_levels), list[int])
        self.mask_var_name, self.mask_var_idx = mask.variable, mask.column
        self.mask_min, self.mask_max = mask.low, mask.high
        self.contract_version = torch.jit.Attribute(CONTRACT_VERSION, str)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the predictions (N, O) for `inputs` (N, F), both in physical units."""
        outputs: torch.Tensor = self.network(inputs)
        return outputs

    @torch.jit.export
    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the same as `forward`."""
        return self.forward(inputs)

    def counted(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return which nodes are unmasked (N, 1), by the raw values `mask` (N, 1) of the masking field or an input."""
        if self.mask_var_name == "":
            return torch.isfinite(mask) & (mask != 0)
        value = mask
        if self.mask_var_idx >= 0:
            value = inputs[:, self.mask_var_idx].unsqueeze(1)
        return torch.isfinite(value) & (value >= self.mask_min) & (value <= self.mask_max)

    def valid_inputs(self, inputs: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        """Return the inputs as a new leaf of the graph, with typical values at masked nodes, where they may be NaN."""
        return torch.where(counted, inputs.detach(), self.typical_inputs).requires_grad_(True)


class SurfaceEmulator(SaberEmulator):
    """Single-level inputs and one single-level output."""

    @torch.jit.export
    def jac_physical(self, inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return d outputs / d inputs (N, O, F) in physical units, 0 at nodes masked by `mask` (N, 1)."""
        # The caller may have disabled gradients, which the derivatives need.
        gradients_were_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        counted = self.counted(inputs, mask)
        samples = self.valid_inputs(inputs, counted)
        jacobian = output_gradients(self.forward(samples), samples)
        torch.set_grad_enabled(gradients_were_enabled)
        return torch.where(counted.unsqueeze(2), jacobian, torch.zeros_like(jacobian))


class VerticalEmulator(SaberEmulator):
    """Columns of one or more variables as inputs, and the column of one variable as output."""

    @torch.jit.export
    def jac_physical(
        self, inputs: torch.Tensor, mask: torch.Tensor, row_indices: torch.Tensor, col_indices: torch.Tensor
    ) -> torch.Tensor:
        """Return d outputs[:, row_indices[i]] / d inputs[:, col_indices[i]] (N, p), 0 at masked nodes.

        Indices are (p,) int64. The cost is one backward pass for each distinct row or for each distinct column,
        whichever are fewer.
        """
        gradients_were_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        counted = self.counted(inputs, mask)
        samples = self.valid_inputs(inputs, counted)
        outputs = self.forward(samples)
        rows, place_of_row = torch.unique(row_indices, return_inverse=True)
        columns, place_of_column = torch.unique(col_indices, return_inverse=True)
        found = torch.zeros([inputs.size(0), row_indices.size(0)], dtype=inputs.dtype)
        if rows.size(0) <= columns.size(0):
            for number in range(rows.size(0)):
                gradient = gradient_of(outputs[:, int(rows[number])].sum(), samples)
                wanted = torch.nonzero(place_of_row == number).view(-1)
                found[:, wanted] = gradient.detach()[:, col_indices[wanted]]
        else:
            # The transposed product is linear in its weights: its derivative with respect to them is a Jacobian column.
            weights = torch.zeros_like(outputs).requires_grad_(True)
            transposed = weighted_gradient_of(outputs, samples, weights)
            for number in range(columns.size(0)):
                tangent = gradient_of(transposed[:, int(columns[number])].sum(), weights)
                wanted = torch.nonzero(place_of_column == number).view(-1)
                found[:, wanted] = tangent.detach()[:, row_indices[wanted]]
        torch.set_grad_enabled(gradients_were_enabled)
        return torch.where(counted, found, torch.zeros_like(found))


def gradient_of(total: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Return d total / d by, in the shape of `by`; the graph is retained for further calls."""
    gradient = torch.autograd.grad([total], [by], retain_graph=True)[0]
    assert gradient is not None
    return gradient


def weighted_gradient_of(outputs: torch.Tensor, by: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sum over outputs of weights * d outputs / d by, itself differentiable by `weights`."""
    given = torch.jit.annotate(list[torch.Tensor | None], [weights])
    gradient = torch.autograd.grad([outputs], [by], grad_outputs=given, create_graph=True)[0]
    assert gradient is not None
    return gradient


def emulator_of(
    network: nn.Module, input_mean: torch.Tensor, names: SaberNames, is_vertical: bool, mask: SaberMask = SaberMask()
) -> SaberEmulator:  # fmt: skip
    """Return the emulator of `network`, in evaluation mode."""
    kind: type[SaberEmulator] = VerticalEmulator if is_vertical else SurfaceEmulator
    return kind(network, input_mean, names, mask).eval()
