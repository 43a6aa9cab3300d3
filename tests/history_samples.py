"""The samples that the rule of `pole` and `clean_data` selects of a file, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpitrain.config import DomainSection
from mpitrain.data.samples import Samples
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import Selection


def read_samples(path: Path, pole: Any, is_clean: bool) -> Samples:
    domain = DomainSection(pole=pole, clean_data=is_clean)
    return open_source(Selection(files=(str(path),), domain=domain)).read_all()
