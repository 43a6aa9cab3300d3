"""The table of schedules of the learning rate by name."""

DEFAULT = None
TABLE = {
    "step": "mpitrain.train.schedules.built_in:StepSchedule",
    "cosine": "mpitrain.train.schedules.built_in:CosineSchedule",
    "plateau": "mpitrain.train.schedules.built_in:PlateauSchedule",
    "none": "mpitrain.train.schedules.built_in:ConstantSchedule",
}
CODE = "mpitrain.train.schedules.code:CodeSchedule"
