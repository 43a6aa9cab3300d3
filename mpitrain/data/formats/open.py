"""Opening a data file of any format."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast

from mpitrain.config.data import READERS
from mpitrain.data.files.rotated_pole import with_true_coordinates
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.formats import SUFFIXES
from mpitrain.data.formats.format import Format, is_data_folder
from mpitrain.data.formats.in_memory import VARIABLES_FILE, open_variables
from mpitrain.data.formats.reading import NO_SETTINGS, Reading
from mpitrain.durable_files import is_in_temporary_folder
from mpitrain.errors import DataError, one_line

OnFile = Callable[[Path | None], bool]
MOST_CPU_S = 20.0  # the netCDF library never returns from about one damaged file in a thousand
_LOOK_S = 0.5
_FIRST_BYTES = 8
# Formats of weather services: suffixes, first bytes, name, and packages and command that convert them to NetCDF.
_CONVERTIBLE = (
    ((".grb", ".grb2", ".grib", ".grib2"), b"GRIB", "GRIB",
     "python -m pip install cfgrib xarray; or: cdo -f nc4 copy", "cfgrib to_netcdf -o {new} {path}"),
    ((".pp",), b"\0\0\1\0", "PP of the Met Office", "python -m pip install scitools-iris",
     "python -c \"import iris; iris.save(iris.load('{path}'), '{new}')\""),
    ((), b"\x0e\x03\x13\x01", "HDF4", "h4h5tools of the HDF Group", "h4toh5 {path} {new}"),
)  # fmt: skip


def open_field_file(
    path: Path, reading: Reading = NO_SETTINGS, on_built: Callable[[], None] = lambda: None
) -> FieldFile:
    """Open a file and apply the settings of `reading`.

    Without `reader` in these, the format follows from the suffix or the first bytes. `on_built` is called after the
    library has opened the file, before any value is read. Raises DataError if the file is missing, unreadable, damaged
    or of no known format.
    """
    if not path.is_file() and not is_data(path):
        raise DataError(f"{path}: no such file; set data.data_path to an existing file, a pattern or a list of these")
    try:
        found = _build(path, reading)
        on_built()
        return with_true_coordinates(reading.apply(found))
    except OSError as error:
        raise DataError(
            f"{path}: cannot be opened ({error.strerror or error}); check the file's permissions"
        ) from error


def _build(path: Path, reading: Reading) -> FieldFile:
    if path.name == VARIABLES_FILE and is_in_temporary_folder(path):
        return open_variables(path)
    found: Format = format_of(path) if reading.reader is None else READERS.validate(reading.reader)
    return found.build(path)


def is_data(path: Path) -> bool:
    """Tell whether a path is a file, or a folder that is one data set."""
    return path.is_file() or is_data_folder(path, _formats().values())


def format_of(path: Path) -> Format:
    """Return the format of a file, by its suffix, or by its first bytes if the suffix is not known.

    Raises DataError if neither is known.
    """
    formats = _formats()
    if is_data_folder(path, formats.values()):
        return next(one for one in formats.values() if is_data_folder(path, [one])).model_validate({})
    named = [formats[name] for name, suffixes in SUFFIXES.items() if path.suffix.lower() in suffixes]
    with path.open("rb") as file:
        start = file.read(_FIRST_BYTES)
    found = named or [one for one in formats.values() if any(map(start.startswith, one.first_bytes))]
    if not found or start.startswith(tuple(first_bytes for _, first_bytes, *_ in _CONVERTIBLE)):
        _refuse_convertible(path, start)
    if not found:
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise DataError(
            f"{path}: neither NetCDF nor HDF5 nor .npz by its first bytes; give it one of the suffixes {known}, or set "
            "data.reader to its format"
        )
    return found[0].model_validate({})


def load_libraries_for(names: Iterable[str]) -> None:
    """Load the libraries that the files or patterns `names` need, as far as the suffixes tell the format."""
    given = {Path(name).suffix.lower() for name in names}
    for name, one in _formats().items():
        if not given.isdisjoint(SUFFIXES[name]):
            with suppress(ImportError):  # opening a file reports what is missing
                one.load_libraries()


def _refuse_convertible(path: Path, start: bytes) -> None:
    """Raise DataError, with a command that converts the file to NetCDF, if its format is known but not supported."""
    for suffixes, first_bytes, name, needs, command in _CONVERTIBLE:
        if start.startswith(first_bytes) or path.suffix.lower() in suffixes:  # bulletins have text before them
            how = command.format(path=path, new=path.with_suffix(".nc").name)
            raise DataError(f"{path}: {name} is not supported; convert it to NetCDF: {how} ({needs})")


def _formats() -> dict[str, type[Format]]:
    return {name: cast(type[Format], READERS.component(name)) for name in READERS.table}


def ignore_file(path: Path | None) -> bool:
    """Ignore the file that is opened; return False."""
    return False


@contextmanager
def opened(path: Path, on_file: OnFile = ignore_file, reading: Reading = NO_SETTINGS) -> Iterator[FieldFile]:
    """Context manager that opens a file (see `open_field_file`) and closes it at the end. Raises DataError.

    `on_file` is called with the path before and with None after; it returns whether it reports the file if this
    process is killed. If the library does not return from a damaged file, this process exits.
    """
    is_noted = on_file(path)
    has_ended = threading.Event()
    threading.Thread(target=_end_endless, args=(path, is_noted, has_ended), daemon=True).start()
    try:
        with closing(open_field_file(path, reading, has_ended.set)) as file:
            yield file
    finally:
        has_ended.set()
    on_file(None)


def _end_endless(path: Path, is_noted: bool, has_ended: threading.Event) -> None:
    """Exit the process if opening a file takes too much processor time; waiting for a slow disk takes none."""
    started_s = time.process_time()
    while time.process_time() - started_s < MOST_CPU_S:
        if has_ended.wait(_LOOK_S):
            return
    if is_noted:
        os.kill(os.getpid(), signal.SIGXCPU)
    problem = "damaged: its library does not finish reading it; write or copy the file again"
    sys.stderr.write(f"mpitrain: error: {one_line(str(path))}: {problem}\n")
    sys.stderr.flush()
    os._exit(DataError.exit_code)
