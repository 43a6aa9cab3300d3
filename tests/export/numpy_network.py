"""A run's network by numpy alone, in double precision, from the numbers of its file: what each export must answer.

b  samples      F  input features      H  hidden units      O  outputs
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

_EPSILON = 1e-5  # of layer norm
ACTIVATIONS = {None: lambda x: np.maximum(x, 0), "silu": lambda x: x / (1 + np.exp(-x))}


def answers_of(run: Path, inputs: Any) -> np.ndarray:
    """Return the outputs (b, O) of an mlp in a run's folder for inputs (b, F)."""
    with safe_open(run / "model.safetensors", "numpy") as file:
        settings = json.loads(file.metadata()["network"])["model"]
        names = file.keys()  # a list: the file is no dict
        values: dict[str, np.ndarray] = {name: file.get_tensor(name).astype(np.float64) for name in names}
    assert (settings["name"], settings["output_activation"], settings["batch_norm"]) == ("mlp", None, False)
    activate = ACTIVATIONS[settings["hidden_activation"]]
    units = (np.asarray(inputs, np.float64) - values["input_mean"]) / values["input_std"]
    for number in range(settings["hidden_layers"]):
        layer = f"network.layers.{number}"
        found = _linear(values, layer, units)
        if settings["layer_norm"]:
            found = found - found.mean(axis=1, keepdims=True)
            found /= np.sqrt((found**2).mean(axis=1, keepdims=True) + _EPSILON)
            found = found * values[f"{layer}.norm.weight"] + values[f"{layer}.norm.bias"]
        found = activate(found)
        units = units + found if settings["residual"] and number > 0 else found
    last = _linear(values, f"network.layers.{settings['hidden_layers']}", units)
    answers: np.ndarray = last * values["output_std"] + values["output_mean"]
    return answers


def _linear(values: dict[str, np.ndarray], layer: str, units: np.ndarray) -> np.ndarray:
    found: np.ndarray = units @ values[f"{layer}.linear.weight"].T + values[f"{layer}.linear.bias"]
    return found
