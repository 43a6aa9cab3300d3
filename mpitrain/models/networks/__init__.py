"""Table of all networks by name. Their torch modules are outside this folder, which must not import torch."""

DEFAULT = None
TABLE = {
    "icenet": "mpitrain.models.networks.icenet:IceNetSettings",
    "mlp": "mpitrain.models.networks.mlp:MlpSettings",
    "cnn": "mpitrain.models.networks.cnn:CnnSettings",
    "unet": "mpitrain.models.networks.cnn:UNetSettings",
}
CODE = "mpitrain.models.networks.code:CodeNetwork"
UNNAMED = "mpitrain.models.networks.unnamed:UnnamedNetwork"
