"""A run's record as an RO-Crate (process run crate, https://w3id.org/ro/wfrun/process): its folder is the crate.

The library `rocrate` builds the metadata. The run is the action; its data files and settings are the objects, its
output files are the result, and the programs with their versions are the instrument.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mpitrain.durable_files import write_durably
from mpitrain.errors import MissingDependencyError, UserError, writing
from mpitrain.runs.reproduction.record import NAME, kinds
from mpitrain.runs.reproduction.stored_record import read_record

METADATA = "ro-crate-metadata.json"
# The version of RO-Crate that the profile is written for.
_VERSION, _PROFILE = "1.1", "https://w3id.org/ro/wfrun/process/0.5"
_NO_LICENSE = "not stated: ask the author of the run and the providers of its data"
# The output files of a run, with their media types; missing files are left out.
_RESULTS = {
    "model.pt": "application/octet-stream",
    "normalization.model.pt": "application/octet-stream",
    "metrics.jsonl": "application/jsonl",
    "statistics.json": "application/json",
    "report.html": "text/html",
    "profile.json": "application/json",
    "certificate.json": "application/vnd.in-toto+json",
}


def write_crate(run: Path) -> Path:
    """Write `ro-crate-metadata.json` into the folder of a run that has ended, and return it.

    Raises UserError if the run has no record or has not ended, MissingDependencyError without rocrate, and OutputError.
    """
    try:
        from rocrate.rocrate import ROCrate
    except ImportError as error:
        raise MissingDependencyError("an RO-Crate needs rocrate: pip install 'rocrate>=0.13'") from error
    record = read_record(run / NAME)
    if record.get("result") is None:
        raise UserError(f"{run}: the run has not ended, so its record is not complete; --resume it first")
    crate = ROCrate(version=_VERSION)
    _describe(crate, run, record)
    with writing(run / METADATA, "is the run folder writable?"):
        # Not written by rocrate, which would follow a symbolic link of that name.
        write_durably(run / METADATA, (json.dumps(crate.metadata.generate(), indent=4, sort_keys=True) + "\n").encode())
    return run / METADATA


def _describe(crate: Any, run: Path, record: Mapping[str, Any]) -> None:
    root, result = crate.root_dataset, record["result"]
    crate.name = f"Training run {run.resolve().name}"
    crate.description = (
        f"A network trained by mpitrain {record['versions'].get('mpitrain', '?')}: {result['epochs']} epochs, "
        f"{result['steps']} steps on {record['ranks']['number']} ranks; "
        f"SHA-256 of the weights {result['weights_sha256']}"
    )
    crate.license = _NO_LICENSE
    root["datePublished"] = record["ended"]
    root["conformsTo"] = _entity(crate, _PROFILE, ["CreativeWork", "Profile"], name="Process Run Crate", version="0.5")
    objects = [_data_file(crate, run, file) for file in record["data"]]
    if (run / "config.yaml").is_file():
        objects.append(_own_file(crate, run, "config.yaml", "application/yaml"))
    results = [_own_file(crate, run, name, media) for name, media in _RESULTS.items() if (run / name).is_file()]
    about = _own_file(crate, run, NAME, "application/json")
    results += [_own_file(crate, run, f"logs/{log.name}", "text/plain") for log in sorted(run.glob("logs/rank-*.log"))]
    root["mentions"] = _entity(
        crate, "#run", "CreateAction", name=crate.name, startTime=record["started"], endTime=record["ended"],
        description=" ".join(record["command_line"]), instrument=_program(crate, record), object=objects,
        result=results, subjectOf=about, resourceUsage=list(_usage(crate, record)),
        actionStatus="http://schema.org/CompletedActionStatus",
    )  # fmt: skip


def _own_file(crate: Any, run: Path, name: str, media_type: str) -> Any:
    properties = {"name": name, "encodingFormat": media_type, "contentSize": str((run / name).stat().st_size)}
    return crate.add_file(run / name, name, properties=properties)


def _data_file(crate: Any, run: Path, file: Mapping[str, Any]) -> Any:
    """Return the entity of a data file: a part of the crate if it lies in the run folder, otherwise its URI."""
    path = Path(file["path"])
    properties = {"name": path.name, "contentSize": str(file["bytes"]), "sha256": file["sha256"]}
    properties = {key: value for key, value in properties.items() if value is not None}
    if os.path.isfile(path) and path.parent == run.resolve():  # false for a name that no file can have
        return crate.add_file(path, path.name, properties=properties)
    return crate.add_file(path.absolute().as_uri(), properties=properties)


def _program(crate: Any, record: Mapping[str, Any]) -> Any:
    versions = dict(record["versions"])
    needs = [_package(crate, name, version) for name, version in versions.items() if version and name != "mpitrain"]
    for key, name in (("mpi_library", "MPI library"), ("compiler", "C++ compiler")):
        for number, found in enumerate(kinds(record, key)):
            needs.append(_entity(crate, f"#{key}-{number}", "SoftwareApplication", name=name, version=found))
    git = record.get("git") or {}
    version = versions.get("mpitrain", "?") + (f" ({git['commit']})" if git else "")
    return _entity(crate, "#mpitrain", "SoftwareApplication", name="mpitrain", version=version,
                   softwareRequirements=needs, operatingSystem="; ".join(kinds(record, "system")),
                   processorRequirements="; ".join(kinds(record, "cpu")))  # fmt: skip


def _package(crate: Any, name: str, version: str) -> Any:
    # The URL of a release does not contain a local version label, as in 2.13.0+cpu.
    release = version.partition("+")[0]
    is_python = name == "Python"
    url = (
        f"https://www.python.org/downloads/release/python-{release.replace('.', '')}/"
        if is_python
        else (f"https://pypi.org/project/{name}/{release}/")
    )
    return _entity(crate, url, "SoftwareApplication", name=name, version=version, url=url)


def _usage(crate: Any, record: Mapping[str, Any]) -> Iterator[Any]:
    facts = {**record["used"], "ranks": record["ranks"]["number"], "nodes": record["ranks"]["nodes"]}
    for name, value in facts.items():
        identity = f"#used-{name}"
        yield _entity(crate, identity, "PropertyValue", name=name, propertyID=identity, value=json.dumps(value))


def _entity(crate: Any, identity: str, kind: str | list[str], **properties: Any) -> Any:
    from rocrate.model.contextentity import ContextEntity

    made = crate.add(ContextEntity(crate, identity, properties={"@type": kind}))
    for name, value in properties.items():
        made[name] = value
    return made
