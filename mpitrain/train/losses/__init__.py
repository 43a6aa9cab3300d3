"""Losses: one file each, named in this table alone."""

DEFAULT = "mse"
TABLE = {
    "mse": "mpitrain.train.losses.mse:MeanSquaredError",
    "mae": "mpitrain.train.losses.mae:MeanAbsoluteError",
    "huber": "mpitrain.train.losses.huber:HuberLoss",
}
CODE = "mpitrain.train.losses.code:CodeLoss"
