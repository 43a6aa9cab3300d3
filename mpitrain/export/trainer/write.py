"""`mpitrain export CONFIG --format trainer`: the files of a trainer, written for its makers."""

from __future__ import annotations

import re

from mpitrain.errors import UserError
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.trainer.collection import read_collection_settings
from mpitrain.export.trainer.plan import plan_trainer
from mpitrain.export.trainer.source import trainer_files


def write_trainer(request: ExportRequest, say: Say) -> None:
    """Write the files next to `request.output_file`, and `say` which they are. Raises UserError or OutputError."""
    output, config = request.output_file, request.run
    if not config.is_file() or request.members:
        raise UserError(f"{config}: --format trainer takes one file of settings, such as run.yaml")
    if request.collection is None:
        raise UserError("--format trainer: give the collection's settings as --collection collect.yaml")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,30}", output.stem):
        raise UserError(f"--output {output}: its stem begins all names, which need letters, digits and _ only")
    plan = plan_trainer(output.stem, config, read_collection_settings(request.collection))
    files = trainer_files(plan, config, request.collection)
    written = request.write_texts(files, [config, request.collection])
    say(f"{written}: trains {'-'.join(map(str, plan.network.sizes))} of {config} in a model")
