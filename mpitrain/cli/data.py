"""The command `mpitrain data`: options and handlers of its actions. Loads only argparse until one runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.cli.settings import add_overwrite_flag, add_trust_flag, split_arguments
from mpitrain.errors import UserError, one_line

if TYPE_CHECKING:
    from mpitrain.comm import Ranks
    from mpitrain.config import RunConfig

_GENERATE_NUMBERS = (
    ("seed", 0, "seed of all fields"),
    ("latitudes", 160, "grid rows"),
    ("longitudes", 240, "grid columns"),
    ("times", 1, "time levels per file"),
    ("files", 1, "number of files, consecutive in time and numbered: FILE_0001.nc"),
    ("compress", 0, "deflate level, 0 (none) to 9"),
)


def add_data_command(commands: Any) -> None:
    """Add `data` and its actions to argparse's subparsers."""
    data = commands.add_parser(
        "data", help="generate, inspect, measure and convert data files", description="Data files."
    )
    actions = data.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_generate(actions)
    _add_inspect(actions)
    _add_stats(actions)
    _add_convert(actions)
    _add_collection(actions)


def _add_generate(actions: Any) -> None:
    text = "write synthetic CICE history files for which the smallest possible error is known"
    generate = actions.add_parser("generate", help=text, description=text)
    generate.add_argument(
        "file", nargs="?", default="cice_history.nc", metavar="FILE.nc", help="default: cice_history.nc"
    )
    for name, default, meaning in _GENERATE_NUMBERS:
        generate.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default: {default})"
        )
    generate.add_argument(
        "--chunks", metavar="T,J,I", help="chunk sizes in times, rows and columns (default: not chunked)"
    )
    add_overwrite_flag(generate)
    generate.set_defaults(handler=_run_generate, one_process=True)


def _add_inspect(actions: Any) -> None:
    text = "show the content of data files, and the variables and samples that the settings select"
    inspect = actions.add_parser("inspect", help=text, description=text)
    _add_arguments(inspect)
    inspect.add_argument(
        "--full", action="store_true", help="minimum, maximum and mean over all values instead of the first part"
    )
    inspect.add_argument(
        "--maps", metavar="FOLDER", help="draw a map of each variable's first time level, with the selected points"
    )
    add_overwrite_flag(inspect)
    inspect.add_argument("--json", action="store_true", help="print JSON instead of a table")
    inspect.set_defaults(handler=_run_inspect, one_process=True)


def _add_stats(actions: Any) -> None:
    text = "print statistics of every variable over the training samples; under mpirun the ranks share the work"
    more = "Values are read as float64. The output is the same for any number of ranks."
    stats = actions.add_parser("stats", help=text, description=f"{text}. {more}")
    _add_arguments(stats)
    stats.add_argument("--json", action="store_true", help="print JSON with its provenance instead of a table")
    stats.set_defaults(handler=_run_stats)


def _add_convert(actions: Any) -> None:
    text = "write the selected samples to files that are fast to read; under mpirun the ranks share the work"
    convert = actions.add_parser("convert", help=text, description=text)
    _add_arguments(convert)
    convert.add_argument(
        "--output", required=True, metavar="FILE.npz|FILE.h5|FOLDER", help="one file, or a new folder of HDF5 files"
    )
    convert.add_argument("--gzip", type=int, default=0, metavar="N", help="HDF5: deflate level, 0 (none, default) to 9")
    convert.set_defaults(handler=_run_convert)


def _add_collection(actions: Any) -> None:
    text = "write C and Fortran sources that collect training samples in a running model"
    collection = actions.add_parser("collection", help=text, description=f"{text} (`mpitrain help collection`)")
    collection.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="default: the current one")
    collection.set_defaults(handler=_run_collection, one_process=True)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="FILE | FILE.yaml | key.path=value",
        help="data files or patterns (default: data.data_path of the settings), then settings",
    )
    add_trust_flag(parser)


def _run_generate(options: argparse.Namespace) -> int:
    from mpitrain.synthetic.history import Storage, check_histories, write_synthetic_histories

    if options.files < 1:
        raise UserError(f"--files {options.files}: give 1 or more")
    paths = _numbered(Path(options.file), options.files)
    check_histories(paths, options.overwrite)
    summaries = write_synthetic_histories(
        paths,
        seed=options.seed,
        num_latitudes=options.latitudes,
        num_longitudes=options.longitudes,
        num_times=options.times,
        storage=Storage(_parse_chunks(options.chunks), options.compress),
    )
    for summary in summaries:
        counts = f"{summary.num_samples_north} samples north, {summary.num_samples_south} south"
        sys.stdout.write(f"{one_line(str(summary.path))}: {counts}\n")
    return 0


def _run_inspect(options: argparse.Namespace) -> int:
    from mpitrain.cluster import note_on_stderr, print_on_stderr
    from mpitrain.datatools.inspect import inspect_data

    config, notices = _load(options, "inspect")
    note_on_stderr(*notices)
    inspection = inspect_data(config, options.full)
    sys.stdout.write((inspection.render_json() if options.json else inspection.render_table()) + "\n")
    if options.maps is not None:
        from mpitrain.datatools.maps import draw_maps

        for path in draw_maps(inspection, Path(options.maps), options.overwrite):
            print_on_stderr(str(path))
    return 0


def _run_stats(options: argparse.Namespace) -> int:
    from mpitrain.datatools.statistics import measure, render_table

    def body(config: RunConfig, ranks: Ranks) -> list[str]:
        record = measure(config, ranks)
        return (json.dumps(record, indent=1) if options.json else render_table(record)).split("\n")

    return _on_all_ranks(options, "stats", body)


def _run_convert(options: argparse.Namespace) -> int:
    if not 0 <= options.gzip <= 9:
        raise UserError(f"--gzip {options.gzip}: give 0 (none) to 9 (smallest)")
    from mpitrain.data import selection_of
    from mpitrain.datatools.convert import convert

    def body(config: RunConfig, ranks: Ranks) -> list[str]:
        converted = convert(selection_of(config), Path(options.output), ranks, options.gzip)
        files = f" in {len(converted.files)} files" if Path(options.output).is_dir() else ""
        return [f"{options.output}: {converted.num_samples} samples{files}"]

    return _on_all_ranks(options, "convert", body)


def _run_collection(options: argparse.Namespace) -> int:
    from mpitrain.datatools.collection import write_collection

    sys.stdout.writelines(f"{one_line(str(path))}\n" for path in write_collection(Path(options.folder)))
    return 0


def _on_all_ranks(options: argparse.Namespace, action: str, body: Callable[[RunConfig, Ranks], list[str]]) -> int:
    """Run `body` on all ranks and print the lines that it returns on the root."""
    from mpitrain.comm import watching_start

    with watching_start(overrides=split_arguments(options.settings)[2]) as watch:
        from mpitrain.comm import open_tensors, run_on_all_ranks

    def run(ranks: Ranks) -> int:
        config, notices = ranks.on_root(lambda: _load(options, action))
        with open_tensors(ranks, config.semantics, config.compute, config.training, config.distributed.timeout_s):
            ranks.note(*notices, *ranks.notices)
            ranks.say(*body(config, ranks))
        return 0

    return run_on_all_ranks(run, watch)


def _load(options: argparse.Namespace, action: str) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the settings, with the data files given as arguments, and the notices about them."""
    from mpitrain.data.selection.settings import with_names_of_file
    from mpitrain.train import with_recorded_rules
    from mpitrain.train.folder.settings import load_settings_to_read

    files, yaml_files, overrides = split_arguments(options.settings)
    if len(yaml_files) > 1:
        raise UserError(f"{yaml_files[1]}: give one file of settings")
    if files:  # as JSON, which YAML parses correctly for every file name
        overrides.append(f"data.data_path={json.dumps(files, ensure_ascii=False)}")
    path = Path(yaml_files[0]) if yaml_files else None
    loaded = with_recorded_rules(load_settings_to_read(path, overrides, options.trust_code), path)
    if not loaded.config.data.entries:
        raise UserError(f"data {action}: give a data file, a pattern, or data.data_path=FILE")
    loaded = with_names_of_file(loaded)
    return loaded.config, tuple(loaded.notices)


def _numbered(path: Path, count: int) -> list[Path]:
    if count == 1:
        return [path]
    digits = max(4, len(str(count)))
    return [path.with_name(f"{path.stem}_{number:0{digits}d}{path.suffix}") for number in range(1, count + 1)]


def _parse_chunks(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"--chunks {text}: give the times, rows and columns of a chunk, such as 1,160,240")
    times, rows, columns = (int(part) for part in parts)
    return times, rows, columns
