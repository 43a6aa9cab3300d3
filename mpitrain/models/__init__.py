"""Networks, their initial weights, and the TorchScript files that C++ loads."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.models.batch_norm import batch_norm_layers
    from mpitrain.models.dense import DenseModel, draw_dense_weights
    from mpitrain.models.dense_module import dense_of
    from mpitrain.models.ensemble import EnsembleNetwork
    from mpitrain.models.files.description import ModelDescription
    from mpitrain.models.files.file_network import StoredNetwork
    from mpitrain.models.files.own_file import contents_sha256, read_own_model
    from mpitrain.models.files.record import architecture_of, grid_of, is_rebuilt
    from mpitrain.models.files.torchscript import save_model, save_normalization
    from mpitrain.models.jacobian import input_jacobian
    from mpitrain.models.networks.network import Network
    from mpitrain.models.output_transforms import physical_outputs
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "batch_norm": ("batch_norm_layers",),
            "dense": ("DenseModel", "draw_dense_weights"),
            "dense_module": ("dense_of",),
            "ensemble": ("EnsembleNetwork",),
            "files.description": ("ModelDescription",),
            "files.file_network": ("StoredNetwork",),
            "files.own_file": ("contents_sha256", "read_own_model"),
            "files.record": ("architecture_of", "grid_of", "is_rebuilt"),
            "files.torchscript": ("save_model", "save_normalization"),
            "jacobian": ("input_jacobian",),
            "networks.network": ("Network",),
            "output_transforms": ("physical_outputs",),
        },
    )
