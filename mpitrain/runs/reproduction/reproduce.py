"""`mpitrain reproduce RUN`: train a run again from its own record, and compare the hash of the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig, load_run_config
from mpitrain.errors import LaunchError, UserError
from mpitrain.runs.beginning import TrainRequest
from mpitrain.runs.reproduction.data_files import check_files
from mpitrain.runs.reproduction.differences import deciding, differences
from mpitrain.runs.reproduction.record import NAME, machine_record, read_record
from mpitrain.runs.train_run import train
from mpitrain.train.run_folder import next_free

NOT_EQUAL = 1


@dataclass(frozen=True)
class ReproduceRequest:
    """The run's folder, and where it is trained again (None: RUN-reproduced, or the next free one)."""

    run: Path
    output: Path | None = None
    trust_code: bool = False


def reproduce(ranks: Ranks, request: ReproduceRequest) -> int:
    """Train again, say whether the weights are equal, and return 0 where they are, else 1. Collective.

    Raises UserError or DataError, on all ranks, where the run cannot be trained again: it has no record or did not end,
    or a file is not the one that it read. Raises LaunchError for a number of ranks that it cannot have.
    """
    record = ranks.on_root(lambda: _finished_record(request))
    ranks.on_all_ranks(lambda: _check_ranks(record, ranks.world_size))
    ranks.starting.now("comparing the data files with the record")
    check_files(ranks, record["data"])
    differing = differences(record, machine_record(ranks))
    for line in differing:
        ranks.say(f"differs: {line}", error=True)
    folder = ranks.on_root(lambda: str(_folder(request)))
    config = ranks.on_all_ranks(lambda: reproduced_settings(record, folder))
    train(ranks, TrainRequest(config=config))
    return ranks.on_root(lambda: _verdict(ranks, record, read_record(Path(folder) / NAME), differing))


def reproduced_settings(record: Mapping[str, Any], folder: str) -> RunConfig:
    """Return the settings that train the recorded run again in `folder`, whatever the number of ranks.

    Raises ConfigError where this version does not know one of them.
    """
    settings = {section: dict(value) if isinstance(value, dict) else value
                for section, value in record["settings"].items()}  # fmt: skip
    decided, here = record["decided"], Path(record["working_folder"])
    data, training, model = settings["data"], settings["training"], settings["model"]
    if data["data_path"] is None:
        limits = [limit for limit in (data["max_patterns"], data["num_samples"]) if limit is not None]
        data |= {"max_patterns": min(limits, default=None), "num_samples": None}
    num_weights = int(model["initial_weights"] is not None)
    files = [file["path"] for file in record["data"]]
    data["data_path"] = files[: len(files) - num_weights]
    if num_weights:
        model["initial_weights"] = str(here / model["initial_weights"])
    training["max_steps"] = None
    if settings["semantics"] == "standard":
        training |= {"batch_size": None, "global_batch_size": decided["training.global_batch_size"]}
        training |= {"virtual_ranks": decided["training.virtual_ranks"], "engine": decided["training.engine"]}
    settings["prediction"] = {}  # what the run predicted is its own; it would be written over
    settings["tracking"] = {}  # so is its trackers' record
    settings["output"] |= {"model_dir": folder, "model_file": Path(settings["output"]["model_file"]).name}
    # JSON is YAML too.
    return load_run_config(None, [f"{name}={json.dumps(value)}" for name, value in settings.items()]).config


def _finished_record(request: ReproduceRequest) -> dict[str, Any]:
    record = read_record(request.run / NAME)
    if "result" not in record:
        raise UserError(f"{request.run}: the run has not ended, so there is nothing to compare with; --resume it first")
    name = record["settings"]["model"]["name"] or ""
    if ":" in name and not request.trust_code:
        raise UserError(
            f"{request.run / NAME}: model.name={name} names code, which would be run; give --trust-code if you trust it"
        )
    return record


def _check_ranks(record: Mapping[str, Any], world_size: int) -> None:
    number = record["ranks"]["number"]
    if record["settings"]["semantics"] == "reference":
        if world_size != number:
            raise LaunchError(
                f"semantics=reference: the result depends on the number of ranks, which was {number} and is "
                f"{world_size} here; start with mpirun -np {number}"
            )
        return
    most = record["decided"]["training.virtual_ranks"]
    if world_size > most:
        raise LaunchError(f"the run has {most} virtual ranks, too few for {world_size} ranks; start at most {most}")


def _folder(request: ReproduceRequest) -> Path:
    if request.output is not None:
        return request.output
    return next_free(request.run.with_name(f"{request.run.resolve().name}-reproduced"))


def _verdict(ranks: Ranks, record: Mapping[str, Any], again: Mapping[str, Any], differing: list[str]) -> int:
    then, now = record["result"]["weights_sha256"], again["result"]["weights_sha256"]
    where = f"{record['ranks']['number']} ranks then, {ranks.world_size} here"
    if then == now:
        despite = f", although these differ: {'; '.join(differing)}" if differing else ""
        ranks.say(f"reproduced: equal, SHA-256 {now[:12]} ({where}){despite}")
        return 0
    ranks.say(f"reproduced: NOT equal, SHA-256 {then[:12]} then, {now[:12]} here ({where}); {_why(record, differing)}")
    return NOT_EQUAL


def _why(record: Mapping[str, Any], differing: list[str]) -> str:
    if record["decided"].get("training.reduction") == "any":
        return "training.reduction=any promises equality to rounding only"
    if record.get("earlier"):
        return "the run was resumed: a setting may have changed on its way (see `earlier` in its record)"
    causes = deciding(differing)
    if causes:
        return f"what can change bits differs: {'; '.join(causes)}"
    return "nothing that is known to change bits differs: please report it, with both records"
