"""Writing a configuration and reading it again gives an equal one; the schema describes every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.config import RunConfig, load_run_config, render_schema, render_yaml
from mpitrain.config.run import rooms

TRAPS = [
    "off",
    "010",
    "12:30",
    "12:30:00",
    "1e-5",
    "null",
    "~",
    "",
    "yes",
    "y",
    "0x10",
    "1_000",
    ".inf",
    "<<",
    "=",
    "- a",
    "a: b",
    "#",
    "*x",
]
TEXT = st.text(min_size=1) | st.sampled_from([trap for trap in TRAPS if trap])
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
COUNT = st.integers(1, 2**63 - 1)


def section(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


CONFIGS = section(
    seed=st.integers(0, 2**63 - 1),
    model=section(hidden_size=COUNT, initial_weights=TEXT, hidden_activation=st.sampled_from(["none", "gelu"])),
    variables=section(input_variables=st.lists(TEXT, min_size=1), output_variables=st.lists(TEXT, min_size=1)),
    data=section(data_path=TEXT, validation_split=st.floats(0, 1, exclude_max=True)),
    training=section(
        epochs=COUNT,
        batch_size=COUNT | st.just("full") | st.none(),
        optimizer=section(learning_rate=POSITIVE, epsilon=POSITIVE),
        scheduler=st.none() | st.fixed_dictionaries({"type": st.just("step")}, optional={"gamma": POSITIVE}),
        shuffle=st.none() | st.booleans(),
    ),
    output=section(model_dir=TEXT, model_file=TEXT),
).map(RunConfig.model_validate)


@settings(deadline=None, max_examples=60)
@given(config=CONFIGS)
def test_round_trip(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(render_yaml(config), encoding="utf-8")
    assert load_run_config(path, ()).config == config


@settings(deadline=None, max_examples=30)
@given(config=CONFIGS)
def test_a_plain_yaml_reader_reads_the_same_values(config: RunConfig) -> None:
    assert yaml.safe_load(render_yaml(config)) == config.model_dump()


@pytest.mark.parametrize("text", [trap for trap in TRAPS if trap])
def test_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    config = load_run_config(None, [f"data.data_path={json.dumps(text)}"]).config
    assert f'  data_path: "{text}"\n' in render_yaml(config)


def test_every_key_is_written_and_plain_words_stay_plain() -> None:
    lines = render_yaml(RunConfig()).splitlines()
    assert "  model_dir: mpitrain_run" in lines
    assert "    epsilon: 1.0e-08" in lines
    assert "  scheduler: null" in lines


def test_the_schema_describes_every_key() -> None:
    schema = json.loads(render_schema())
    assert schema["$defs"]["TrainingSection"]["properties"]["epochs"]["description"].startswith("Number of passes")
    models = {"RunConfig": schema, **schema["$defs"]}
    components = [cls.model_json_schema() for room in rooms() for cls in room.components()]
    assert components
    undescribed = [
        f"{name}.{key}"
        for name, model in [*models.items(), *((one["title"], one) for one in components)]
        for key, field in model["properties"].items()
        # A section's own description stands at its definition.
        if "description" not in field and "$ref" not in field
    ]
    assert undescribed == []
    assert all("description" in model for model in models.values())
    assert len(models) == 13


def test_the_schema_is_that_of_the_file_it_describes(tmp_path: Path) -> None:
    keys = set(json.loads(render_schema())["properties"])
    assert keys == set(yaml.safe_load(render_yaml(RunConfig())))
