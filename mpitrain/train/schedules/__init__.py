"""Schedules of the learning rate: one file each, named in this table alone."""

DEFAULT = None
TABLE = {
    "step": "mpitrain.train.schedules.step:StepSchedule",
    "cosine": "mpitrain.train.schedules.cosine:CosineSchedule",
    "plateau": "mpitrain.train.schedules.plateau:PlateauSchedule",
    "none": "mpitrain.train.schedules.constant:ConstantSchedule",
}
CODE = "mpitrain.train.schedules.code:CodeSchedule"
