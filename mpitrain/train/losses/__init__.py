"""The table of losses by name."""

DEFAULT = "mse"
TABLE = {
    "mse": "mpitrain.train.losses.built_in:MeanSquaredError",
    "mae": "mpitrain.train.losses.built_in:MeanAbsoluteError",
    "huber": "mpitrain.train.losses.built_in:HuberLoss",
}
CODE = "mpitrain.train.losses.code:CodeLoss"
