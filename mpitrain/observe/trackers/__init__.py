"""Experiment trackers, named in this table alone. The root alone opens them, and tells of each epoch.

Each loads its library where it is asked for.
"""

DEFAULT = None
TABLE = {
    "tensorboard": "mpitrain.observe.trackers.built_in:TensorBoard",
    "wandb": "mpitrain.observe.trackers.built_in:WeightsAndBiases",
    "mlflow": "mpitrain.observe.trackers.built_in:MLflow",
}
CODE = "mpitrain.observe.trackers.code:CodeTracker"
