"""Python's side of a trace: a run taken stage by stage, and watched.

V  virtual ranks      b  rows a microbatch      N  samples      F  input features
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from mpitrain.comm import Ranks, to_tensor
from mpitrain.config import RunConfig
from mpitrain.data import open_source_on_root, selection_of
from mpitrain.data.dataset.exchange import read_own_chunks
from mpitrain.data.open_dataset import hold_samples
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.runs.build import build_model, data_request, engine_request, model_request
from mpitrain.runs.engine import SampleOrder, build_engine, open_microbatches, plan_run_batches
from mpitrain.runs.layout import plan_layout
from mpitrain.train import StopRequest, Trainer
from mpitrain.train.choose_engine import choose_engine
from mpitrain.verify.trace import Trace
from mpitrain.verify.traced_run import (
    Recorded,
    TraceRecorder,
    add_forward,
    add_partition,
    add_weights,
    trace_array,
    without_missing,
)


def record_run(config: RunConfig, ranks: Ranks, trace_steps: Sequence[int]) -> Recorded:
    """Train as `config` says, stage by stage as a run does (`mpitrain.runs`), and return its trace. Collective."""
    source = open_source_on_root(selection_of(config), ranks)
    rule = plan_layout(config, ranks, None, "points")
    dataset = hold_samples(data_request(config), read_own_chunks(source, ranks), rule.virtual_ranks, ranks)
    layout = rule.layout(dataset.summary.num_usable_samples, dataset.summary.num_training_samples)
    model = build_model(model_request(config), dataset.summary, ranks)
    plan = plan_run_batches(config.training, dataset, layout, ranks)
    tensors = dataset.converted(functools.partial(to_tensor, device=ranks.device))
    order, known = SampleOrder(config.seed, config.shuffle), set[str]()
    _, example = open_microbatches(config.network, order, tensors, model, plan, ranks, known)
    request = engine_request(config)
    choice = choose_engine(request, ranks, model, example)
    trained_on = dataset if choice.name == "compiled" else tensors
    sources, _ = open_microbatches(config.network, order, trained_on, model, plan, ranks, known)
    engine = build_engine(request, config.seed, choice, trained_on, model, sources, plan, layout, ranks)
    selected = ranks.on_all_ranks(source.read_all)
    kept = without_missing(selected)
    trace = Trace({"selected_index": kept.grid_index})
    add_partition(trace, ranks, dataset)
    add_weights(trace, "initial", model)
    add_forward(trace, ranks, tensors, model)
    recorder = TraceRecorder(model, trace, trace_steps)
    Trainer(config.training, ranks, model, engine, [recorder], StopRequest(), one_by_one=True).fit()
    trace.arrays["loss"] = recorder.losses().astype(config.training.dtype)
    add_weights(trace, "weights_final", model)
    outputs, jacobian = scalar_jacobian(model, torch.from_numpy(kept.inputs.astype(config.training.dtype)))
    trace.arrays["prediction"], trace.arrays["jacobian"] = trace_array(outputs), trace_array(jacobian)
    trace.attributes["median_us_per_step"] = recorder.median_step_us()
    return Recorded(trace, kept, plan)
