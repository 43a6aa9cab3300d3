"""The training loop, its step engines, optimisers, schedules and checkpoints."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.train.callbacks import Callback
    from mpitrain.train.checkpoint.format import weights_sha256
    from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore
    from mpitrain.train.folder.claim import ClaimedFolder
    from mpitrain.train.folder.settings import (
        is_plain_name,
        load_folder_settings,
        refuse_code,
        remember_code_of,
        settings_of_record,
        trusts_code_of,
        with_recorded_rules,
    )
    from mpitrain.train.losses.array_loss import target_weights_of
    from mpitrain.train.needs import EngineRequest
    from mpitrain.train.run_folder import RUN, RunFolder
    from mpitrain.train.state import TrainingState, load_named_weights, named_weights
    from mpitrain.train.stop_request import StopRequest
    from mpitrain.train.trainer import Trainer
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "callbacks": ("Callback",),
            "checkpoint.format": ("weights_sha256",),
            "checkpoint.store": ("Checkpoint", "CheckpointStore"),
            "folder.claim": ("ClaimedFolder",),
            "folder.settings": (
                "is_plain_name",
                "load_folder_settings",
                "refuse_code",
                "remember_code_of",
                "settings_of_record",
                "trusts_code_of",
                "with_recorded_rules",
            ),
            "losses.array_loss": ("target_weights_of",),
            "needs": ("EngineRequest",),
            "run_folder": ("RUN", "RunFolder"),
            "state": ("TrainingState", "load_named_weights", "named_weights"),
            "stop_request": ("StopRequest",),
            "trainer": ("Trainer",),
        },
    )
