"""The table of settings of no effect: each key exists, is silent at its default, and is named when set."""

from __future__ import annotations

import pytest
import yaml

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.not_used_yet import NOT_USED_YET, not_used_notices, value_at

OTHER_VALUES = {
    "training.optimizer.type": "sgd",
    "training.loss_function": "huber",
    "distributed.strategy": "single",
    "data.thin_fraction": 0.5,
}


def other_value(key: str) -> object:
    default = value_at(RunConfig(), key)
    if key in OTHER_VALUES:
        return OTHER_VALUES[key]
    if isinstance(default, bool):
        return not default
    if default is None:
        lists, numbers = key.startswith("variables."), key in ("data.num_samples", "data.max_patterns")
        return ["sst"] if lists else 5 if numbers else "name"
    return default + 1


def test_defaults_give_no_notice() -> None:
    assert not_used_notices(RunConfig()) == ()


@pytest.mark.parametrize("key", NOT_USED_YET)
def test_a_key_of_the_table_is_named_when_set(key: str) -> None:
    value = yaml.safe_dump(other_value(key), default_flow_style=True).removesuffix("\n...\n").strip()
    loaded = load_run_config(None, [f"{key}={value}"])
    note = f": {NOT_USED_YET[key]}" if NOT_USED_YET[key] else ""
    named = [notice for notice in loaded.notices if "not used yet" in notice]
    assert named == [f"{key}={value}: accepted, not used yet{note}"]
