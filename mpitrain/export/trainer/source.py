"""The files of a trainer: its C++ source with the compiled step inside, its C header, its Fortran module."""

from __future__ import annotations

import re
from pathlib import Path

from mpitrain.errors import UserError, one_line
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.trainer.collection import read_collection_settings
from mpitrain.export.trainer.fortran import fortran_module
from mpitrain.export.trainer.plan import TrainerPlan, plan_trainer
from mpitrain.export.trainer.texts import constants_of
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
// See {name}.h. The training step is that of mpitrain {version}; written by `mpitrain export --format trainer`.
#include "{name}.h"

#ifdef __FAST_MATH__
#error "-Ofast and -ffast-math change results: give this file -O3 -fno-fast-math -ffp-contract=off, see {name}.h"
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


def trainer_files(plan: TrainerPlan, config: Path, collection: Path) -> dict[str, str]:
    """Return the texts of the files by their names."""
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
    """Return a header of the kernel with those that it includes in their place, each once."""
    known.add(name)
    text = (_KERNELS / name).read_text(encoding="utf-8")
    return _OWN_INCLUDE.sub(lambda found: "" if found[1] in known else _kernel(found[1], known) + "\n", text)


def _header(plan: TrainerPlan, config: Path, collection: Path) -> str:
    network, variables = plan.network, list(plan.collection.variables)
    num_inputs, num_targets = network.sizes[0], network.sizes[-1]
    counters = {"input": 0, "target": 0}
    rows = []
    for name, role, units in variables:
        rows.append((f"{role}s[{counters[role]}]", name, units or "?"))
        counters[role] += 1
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
        raise UserError(f"{config}: --format trainer takes one file of settings, such as run.yaml")
    if request.collection is None:
        raise UserError("--format trainer: give the collection's settings as --collection collect.yaml")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,30}", output.stem):
        raise UserError(f"--output {output}: its stem begins all names, which need letters, digits and _ only")
    plan = plan_trainer(output.stem, config, read_collection_settings(request.collection))
    files = trainer_files(plan, config, request.collection)
    written = request.write_texts(files, [config, request.collection])
    say(f"{written}: trains {'-'.join(map(str, plan.network.sizes))} of {config} in a model")
