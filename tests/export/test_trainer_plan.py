"""What a trainer takes of a file of settings and of a collection's, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from conftest import PROJECT

from mpitrain.errors import UserError
from mpitrain.export.command import run_export
from mpitrain.export.request import ExportRequest
from mpitrain.export.trainer.collection import read_collection_settings
from mpitrain.export.trainer.plan import plan_trainer
from mpitrain.export.trainer.source import literal, trainer_files
from mpitrain.native.toolchain import find_next_to_python

COLLECTION = PROJECT / "jobs" / "collection" / "collect.yaml"


def refused(folder, settings: str, collection: str | None = None, name: str = "t.cpp") -> str:
    (folder / "run.yaml").write_text(settings + "\n")
    (folder / "collect.yaml").write_text(COLLECTION.read_text() if collection is None else collection)
    given = None if collection == "" else folder / "collect.yaml"
    request = ExportRequest(folder / "run.yaml", folder / name, format="trainer", collection=given)
    with pytest.raises(UserError) as raised:
        run_export(request, lambda line: None)
    assert not list(folder.glob("t*"))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("model: {name: mlp, batch_norm: true}", "model.batch_norm=true: a trainer keeps no running statistics"),
        ("training: {scheduler: {type: plateau}}", "learning rates depend on the epoch only"),
        ("training: {reduction: any}", "a trainer sums in the fixed order"),
        ("model: {name: mlp, hidden_size: 520}", "a layer is wider than 512; a trainer uses the compiled step"),
        ("training: {virtual_ranks: 256}", "256 microbatches; a trainer has at most 128"),
        (
            "training: {global_batch_size: full}",
            "give a number, or training.virtual_ranks=8 here and in mpitrain train",
        ),
        ("training: {engine: eager}", "training.engine=eager: a trainer uses the compiled step"),
        ("training: {area_weighted_loss: true}", "training.area_weighted_loss: a trainer supports only"),
        ("data: {split: time}", "data.split: a trainer trains on all samples that it keeps"),
        ("variables: {input_variables: [u]}", "the collection has depth[lev5=:] u[lev2=:] v[lev2=:], in this order"),
    ],
)
def test_what_a_trainer_cannot_do_is_said_in_a_line(tmp_path, settings, said):
    assert said in refused(tmp_path, settings)


@pytest.mark.parametrize(
    ("collection", "said"),
    [
        ("", "give the collection's settings as --collection collect.yaml"),
        ("output: [", "is not valid YAML"),
        ("- samples", "collect.yaml: the file: "),
        ("output: x.nc", "samples: Field required; see mpitrain help collection"),
        (f"{COLLECTION.read_text()}strata:\n  regions: 3\n", "strata: a trainer does not use weights of samples"),
    ],
)
def test_wrong_collections_are_refused(tmp_path, collection, said):
    assert said in refused(tmp_path, "seed: 1", collection)


def test_texts_of_a_collection_need_no_quotes(tmp_path):
    path = tmp_path / "collect.yaml"
    path.write_text(
        "output: c.nc\nsamples: 9\ninputs:\n- {name: fraction, units: 1, long_name: 2}\ntargets:\n- {name: y}\n"
    )
    assert next(iter(read_collection_settings(path).variables)) == ("fraction", "input", "1")


def test_a_name_begins_all_names(tmp_path):
    assert "its stem begins all names" in refused(tmp_path, "seed: 1", name="1-t.cpp")


def test_it_takes_names_and_file_of_the_collection(tmp_path):
    (tmp_path / "run.yaml").write_text("training: {epochs: 3}\n")
    plan = plan_trainer("t", tmp_path / "run.yaml", read_collection_settings(COLLECTION))
    assert plan.config.variables.input_variables == ["depth[lev5=:]", "u[lev2=:]", "v[lev2=:]"]
    assert plan.config.data.data_path == "collected.nc"
    assert plan.network.sizes == (9, 128, 128, 128, 128, 1)  # the defaults for 5,000 samples
    assert plan.settings["variables.input_variables"][4:6] == ["depth[lev5=4]", "u[lev2=0]"]
    assert len(plan.rates) == 3


HOSTILE = ("x*/\n#error injected\n/*", "*\\\n/ #error", 'quoted" \\" \' ??/', "😀 \x85\u2028\x1b[31m", "/* ??=error")


def test_names_and_units_of_any_text_can_be_compiled(tmp_path):
    settings, collection = tmp_path / "a*.yaml", tmp_path / "b\n*\\\n.yaml"
    settings.write_text("model: {hidden_size: 4, hidden_layers: 1}\n")
    inputs = [{"name": text, "units": text} for text in HOSTILE]
    targets = [{"name": "y", "units": HOSTILE[0]}]
    text = json.dumps({"output": "x.nc", "samples": 100, "inputs": inputs, "targets": targets})
    collection.write_text(text.replace("\\ud83d\\ude00", "😀"), encoding="utf-8")  # which YAML has not in halves
    plan = plan_trainer("t", settings, read_collection_settings(collection))
    for name, text in trainer_files(plan, settings, collection).items():
        (tmp_path / name).write_text(text)
    compiler = str(find_next_to_python("mpicxx"))
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    done = subprocess.run([compiler, *flags, "-fsyntax-only", "t.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_literal_is_the_text(tmp_path):
    for text in (*HOSTILE, "".join(map(chr, range(1, 300))), "\\101 1\\", ""):
        source = f"#include <cstdio>\nconst char text[] =\n    {literal(text)};\n"
        (tmp_path / "t.cpp").write_text(source + "int main() { fwrite(text, 1, sizeof text - 1, stdout); }\n")
        subprocess.run(["g++", "-std=c++14", "-Werror", "t.cpp", "-o", "t"], check=True, cwd=tmp_path)
        assert subprocess.run(["./t"], check=True, cwd=tmp_path, capture_output=True).stdout == text.encode()


def test_two_trainers_have_no_name_in_common(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {hidden_size: 4, hidden_layers: 1}\n")
    shutil.copy(COLLECTION, tmp_path)
    for name in ("one", "two"):
        request = ExportRequest(
            tmp_path / "run.yaml", tmp_path / f"{name}.cpp", format="trainer", collection=tmp_path / "collect.yaml"
        )
        run_export(request, lambda line: None)
    header = (tmp_path / "one.h").read_text()
    assert "one_open(one_trainer **trainer, MPI_Comm comm)" in header
    assert "targets[0]  tendency" in header
    assert "two_" not in header + (tmp_path / "one.cpp").read_text() + (tmp_path / "one_module.f90").read_text()
