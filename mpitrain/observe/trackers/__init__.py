"""Experiment trackers: one file each, named in this table alone. The root alone opens them, and tells of each epoch.

Each loads its library where it is asked for.
"""

DEFAULT = None
TABLE = {
    "tensorboard": "mpitrain.observe.trackers.tensorboard:TensorBoard",
    "wandb": "mpitrain.observe.trackers.wandb:WeightsAndBiases",
    "mlflow": "mpitrain.observe.trackers.mlflow:MLflow",
}
CODE = "mpitrain.observe.trackers.code:CodeTracker"
