"""The schedulers by name: the only place that lists them."""

from __future__ import annotations

from collections.abc import Mapping

from mpitrain.launch.schedulers.local import Local
from mpitrain.launch.schedulers.manual import Manual
from mpitrain.launch.schedulers.pbs import Pbs
from mpitrain.launch.schedulers.scheduler import Scheduler
from mpitrain.launch.schedulers.slurm import Slurm
from mpitrain.launch.schedulers.torque import Torque

SCHEDULERS: Mapping[str, Scheduler] = {one.name: one for one in (Slurm(), Pbs(), Torque(), Local(), Manual())}
