"""The table of optimisers by name."""

DEFAULT = "adam"
TABLE = {
    "adam": "mpitrain.train.optimizers.adam:Adam",
    "adamw": "mpitrain.train.optimizers.adam:AdamW",
    "sgd": "mpitrain.train.optimizers.sgd:StochasticGradientDescent",
}
CODE = "mpitrain.train.optimizers.code:CodeOptimizer"
