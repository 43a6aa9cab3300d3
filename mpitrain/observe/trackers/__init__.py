"""Experiment trackers; this table is the only list of their names. Only the root opens them and records epochs.

Each tracker's library is loaded only if the tracker is requested.
"""

DEFAULT = None
TABLE = {
    "tensorboard": "mpitrain.observe.trackers.built_in:TensorBoard",
    "wandb": "mpitrain.observe.trackers.built_in:WeightsAndBiases",
    "mlflow": "mpitrain.observe.trackers.built_in:MLflow",
}
CODE = "mpitrain.observe.trackers.code:CodeTracker"
