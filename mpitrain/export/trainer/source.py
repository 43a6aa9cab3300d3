"""The files of a trainer: a C++ source that includes the compiled training step, a C header, a Fortran module."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mpitrain.config import render_yaml
from mpitrain.errors import UserError, one_line
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.trainer.collection import read_collection_settings
from mpitrain.export.trainer.fortran import fortran_module
from mpitrain.export.trainer.plan import TrainerPlan, plan_trainer
from mpitrain.models import ModelDescription
from mpitrain.models.files.record import record_of
from mpitrain.text_table import aligned
from mpitrain.version import __version__

_PACKAGE = Path(__file__).parents[2]
_KERNELS = _PACKAGE / "train" / "compiled" / "kernels"
_SAMPLING = _PACKAGE / "datatools" / "collection_sources"
_OWN = Path(__file__).with_name("sources")
_PARTS_OF_COLLECTION = ("keyed_hash.h", "lowest.h", "values.h")
_OWN_PARTS = (
    "samples.hpp", "statistics.hpp", "orders.hpp", "sha256.hpp", "data.hpp", "training.hpp", "run_folder.hpp",
    "restart.hpp", "trainer.hpp",
)  # fmt: skip
_OWN_INCLUDE = re.compile(r'^#include "(\w+\.hpp)"\n', re.MULTILINE)
_C_TYPES = {"float32": "float", "float64": "double"}
_BEGINNING = """\
// See {name}.h. The training step is that of mpitrain {version}. Written by `mpitrain export --format trainer`.
#include "{name}.h"

#ifdef __FAST_MATH__
#error "-Ofast and -ffast-math change results: compile with -O3 -fno-fast-math -ffp-contract=off (see {name}.h)"
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define NAME(x) {name}_##x
#define TRAINER_REAL {real}
"""
_ESCAPES = {"\n": "\\n", '"': '\\"', "\\": "\\\\", "?": "\\?"}


def trainer_files(plan: TrainerPlan, config: Path, collection: Path) -> dict[str, str]:
    """Return the text of each file, by file name."""
    return {
        f"{plan.name}.h": _header(plan, config, collection),
        f"{plan.name}.cpp": _source(plan),
        f"{plan.name}_module.f90": fortran_module(plan),
    }


def _source(plan: TrainerPlan) -> str:
    beginning = _BEGINNING.format(name=plan.name, version=__version__, real=_C_TYPES[plan.network.dtype])
    macros = [f"#define {macro.removeprefix('-D').replace('=', ' ', 1)}" for macro in plan.network.macros()]
    sampling = "\n".join((_SAMPLING / name).read_text(encoding="utf-8") for name in _PARTS_OF_COLLECTION)
    own = "\n".join((_OWN / name).read_text(encoding="utf-8") for name in _OWN_PARTS)
    return "\n".join([
        beginning, *macros, "", _kernel("whole_steps.hpp", set()), "namespace {\nnamespace sampling {\n", sampling,
        "}  // namespace sampling\n}  // namespace\n", constants_of(plan), own,
    ]).replace("#pragma once\n", "")  # fmt: skip


def _kernel(name: str, known: set[str]) -> str:
    """Return a header of the kernel in which each include is replaced by the header's text, once."""
    known.add(name)
    text = (_KERNELS / name).read_text(encoding="utf-8")
    return _OWN_INCLUDE.sub(lambda found: "" if found[1] in known else _kernel(found[1], known) + "\n", text)


def _header(plan: TrainerPlan, config: Path, collection: Path) -> str:
    network, before = plan.network, {"input": 0, "target": plan.network.sizes[0]}
    num_inputs, num_targets = network.sizes[0], network.sizes[-1]
    numbered = enumerate(plan.collection.variables)
    rows = [(f"{role}s[{number - before[role]}]", name, units or "?") for number, (name, role, units) in numbered]
    num_bytes = plan.collection.samples * (13 * (num_inputs + num_targets) + 76)
    values = {
        "NAME": plan.name, "GUARD": f"{plan.name.upper()}_H", "VERSION": __version__,
        "CONFIG": _in_comment(config.name), "COLLECTION": _in_comment(collection.name),
        "SHAPE": "-".join(map(str, network.sizes)), "REAL": _C_TYPES[network.dtype],
        "SAMPLES": f"{plan.collection.samples:,}", "F": str(num_inputs), "O": str(num_targets),
        "VARIABLES": "".join(f" *   {_in_comment(line)}\n" for line in aligned(rows, num_left=3)),
        "BYTES": f"{num_bytes / 2**20:.0f} MiB" if num_bytes > 2**20 else "1 MiB",
    }  # fmt: skip
    text = (_OWN / "trainer.h").read_text(encoding="utf-8")
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _in_comment(line: str) -> str:
    return one_line(line.rstrip()).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def write_trainer(request: ExportRequest, say: Say) -> None:
    """Write the files next to `request.output_file`, and `say` which they are. Raises UserError or OutputError."""
    output, config = request.output_file, request.run
    if not config.is_file() or request.members:
        raise UserError(f"{config}: --format trainer needs one file of settings, such as run.yaml")
    if request.collection is None:
        raise UserError("--format trainer: give the collection's settings as --collection collect.yaml")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,30}", output.stem):
        raise UserError(
            f"--output {output}: its stem begins all names: give a letter, then at most 30 letters, digits or _"
        )
    plan = plan_trainer(output.stem, config, read_collection_settings(request.collection), request.trust_code)
    files = trainer_files(plan, config, request.collection)
    written = request.write_texts(files, [config, request.collection])
    say(f"{written}: trains {'-'.join(map(str, plan.network.sizes))} of {config} inside a model")


def constants_of(plan: TrainerPlan) -> str:
    """Return the C++ constants that configure the kernel for this plan."""
    return "\n".join(
        ["namespace {", *_numbers(plan), *_tensors(plan), *_texts(plan), *_weights(plan), "}  // namespace"]
    )


def literal(text: str) -> str:
    """Return the text as a C++ string literal in UTF-8, with one source line for each line of the text."""
    lines = text.splitlines(keepends=True) or [""]
    return "\n    ".join(f'"{"".join(map(_escaped, line.encode()))}"' for line in lines)


def _escaped(byte: int) -> str:
    """Return a byte, escaped where C++ requires it; a question mark is escaped because it could begin a trigraph."""
    character = chr(byte)
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if " " <= character <= "~" else f"\\{byte:03o}"


def _numbers(plan: TrainerPlan) -> Iterator[str]:
    config, optimizer, training = plan.config, plan.config.training.optimizer, plan.config.training
    may_stop = config.holds_out and training.early_stopping_patience is not None
    whole = {
        "num_kept": plan.collection.samples, "num_microbatches": plan.num_microbatches, "batch_size": plan.batch_size,
        "patience": training.early_stopping_patience if may_stop else 0, "min_epochs": training.min_epochs,
        "optimizer_kind": int(optimizer.kernel),
    }  # fmt: skip
    seeds = {"collection_seed": plan.collection.seed, "run_seed": config.seed, "split_seed": config.split_seed}
    flags = {
        "shuffles": config.shuffle, "normalises_targets": config.normalizes_outputs,
        "exports_best": config.exported_weights == "best", "counts_steps": optimizer.counts_steps,
        "has_exact_batches": training.virtual_ranks is None,
    }  # fmt: skip
    usual = dict.fromkeys(("beta1", "beta2", "epsilon", "weight_decay", "momentum"), 0.0)
    reals = {**usual, **optimizer.kernel_numbers(), "clip_norm": training.gradient_clip_norm or 0.0}
    reals |= {"split_start": plan.split[0], "split_stop": plan.split[1]}
    yield from (f"constexpr std::int64_t {name} = {value};" for name, value in whole.items())
    yield from (f"constexpr std::uint64_t {name} = {value}u;" for name, value in seeds.items())
    yield from (f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items())
    yield from (f"constexpr double {name} = {float(value).hex()};  // {value}" for name, value in reals.items())
    yield _table("constexpr double", "learning_rates", (rate.hex() for rate in plan.rates))
    weights = (f"Real({float(weight).hex()})" for weight in plan.target_weights)
    yield _table("constexpr Real", "target_weights", weights)
    yield 'static_assert(num_microbatches <= largest_tree_rows, "see training.global_batch_size");'


def _tensors(plan: TrainerPlan) -> Iterator[str]:
    yield "struct NamedTensor {\n    const char *name, *shape, *python_shape;\n    std::int64_t first, count;\n};"
    num_inputs, num_targets = plan.network.sizes[0], plan.network.sizes[-1]
    lengths = {"input_mean": num_inputs, "input_std": num_inputs, "output_mean": num_targets, "output_std": num_targets}
    first = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
    parameters, place = [], 0
    for name, parameter in plan.model.named_parameters():
        parameters.append(_tensor(name, parameter.shape, place))
        place += parameter.size
    statistics = [_tensor(name, buffer.shape, first[name]) for name, buffer in plan.model.named_buffers()]
    yield _table("const NamedTensor", "parameter_tensors", parameters)
    yield _table("const NamedTensor", "statistic_tensors", statistics)


def _tensor(name: str, shape: tuple[int, ...], first: int) -> str:
    return f'{{"{name}", "{list(shape)}", "{tuple(shape)}", {first}, {int(np.prod(shape))}}}'


def _texts(plan: TrainerPlan) -> Iterator[str]:
    model, optimizer = plan.model, plan.config.training.optimizer
    record = record_of(model, model.num_inputs, model.num_outputs, model.dtype)
    assert record is not None
    before, after = _description(plan)
    moments = (*(f".{name}" for name in optimizer.moments), "", "")
    texts = {
        "config_yaml": render_yaml(plan.config), "settings_json": json.dumps(plan.settings, sort_keys=True),
        "collection_text": plan.collection.model_dump_json(), "network_json": record.model_dump_json(),
        "description_before": before, "description_after": after,
        "first_moment_name": moments[0], "second_moment_name": moments[1],
    }  # fmt: skip
    yield from (f"const char {name}[] =\n    {literal(text)};" for name, text in texts.items())
    described = [
        literal(f'"name": {json.dumps(name)}, "role": "{role}", "units": {json.dumps(units)}')
        for name, role, units in plan.collection.variables
    ]
    yield _table("const char* const", "described_values", described)


def _description(plan: TrainerPlan) -> tuple[str, str]:
    """Return the JSON of the description before and after the inputs' ranges, which are known only from the samples."""
    variables = list(plan.collection.variables)
    inputs, targets = ([one for one in variables if one[1] == role] for role in ("input", "target"))
    names, units = ([tuple(one[key] for one in part) for part in (inputs, targets)] for key in (0, 2))
    text = json.dumps(asdict(ModelDescription(*names, *units)))
    before, mark, after = text.partition('"input_ranges": [')
    return before + mark, after


def _weights(plan: TrainerPlan) -> Iterator[str]:
    values = np.concatenate([parameter.reshape(-1) for _, parameter in plan.model.named_parameters()])
    bits = (f"{word:#x}" for word in values.astype(np.float32).view(np.uint32).tolist())
    yield "// bits of float32 numbers"
    yield _table("const std::uint32_t", "first_weights", bits)


def _table(kind: str, name: str, entries: Iterable[str]) -> str:
    lines, line = [], ""
    for entry in entries:
        if line and len(line) + len(entry) > 110:
            lines.append(line)
            line = ""
        line += f" {entry},"
    return f"{kind} {name}[] = {{\n   " + "\n   ".join([*lines, line]) + "\n};"
