"""Configurations of a user, and what `mpitrain verify` reported of them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from conftest import REFERENCE_CASE

HISTORY = REFERENCE_CASE / "cice_history.nc"


def reference_yaml(folder: Path, **training: object) -> Path:
    settings = {
        "semantics": "reference",
        "model": {"hidden_size": 16, "initial_weights": str(REFERENCE_CASE / "initial_weights.nc")},
        "data": {"data_path": str(HISTORY)},
        "training": {"epochs": 200, **training},
    }
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def cases_of(folder: Path) -> list[dict]:
    return json.loads((folder / "verify.json").read_text())["cases"]
