"""Certificates: gates that are trained, the in-toto Statement of them, and what a check of it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import launch

from mpitrain.cli.main import main
from mpitrain.errors import DataError, MpitrainError, UserError
from mpitrain.verify.certificate import CertificateRequest, certify, check, package_sha256
from mpitrain.verify.gates import named_gates, try_gates
from mpitrain.verify.invariance.runs import Recipe, Result

WORDS = ("data.num_samples=200", "training.global_batch_size=64", "training.epochs=1", "model.hidden_size=4")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two ranks, with the certificates of whole trainings and of two steps."""
    folder = tmp_path_factory.mktemp("certified")
    done = launch(["-m", "mpitrain", f"output.model_dir={folder / 'run'}", *WORDS], num_ranks=2)
    assert done.returncode == 0, done.stderr
    for gates in (("repeat", "ranks:1"), ("ranks:1@steps=2",)):
        words = ["--certificate", str(folder / "run"), "--output", str(folder / "verify"), "--gates", *gates]
        done = launch(["-m", "mpitrain", "verify", *words])
        assert done.returncode == 0, done.stderr
        assert "trainings: 2 of " in done.stderr
    return folder / "run"


def checked(
    run: Path, *gates: str, name: str = "certificate.json", data: tuple[str, ...] = ()
) -> tuple[bool, list[str]]:
    lines: list[str] = []
    request = CertificateRequest(run, gates, run.with_name("checks"), data)
    return check(run / name, request, lines.append), [line for line in lines if line.startswith(("differs", "gate"))]


def copied(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder / "copy", symlinks=True)
    return folder / "copy"


def test_a_certificate_is_a_statement_of_a_test_result(run: Path) -> None:
    found = json.loads((run / "certificate.json").read_text())
    assert (found["_type"], found["predicateType"]) == (
        "https://in-toto.io/Statement/v1", "https://in-toto.io/attestation/test-result/v0.1",
    )  # fmt: skip
    assert [one["name"] for one in found["subject"]] == ["model.safetensors", "weights"]
    record = json.loads((run / "run_record.json").read_text())
    assert found["subject"][1]["digest"]["sha256"] == record["result"]["weights_sha256"]
    predicate = found["predicate"]
    assert (predicate["result"], predicate["passedTests"], predicate["failedTests"]) == (
        "PASSED",
        ["repeat", "ranks:1"],
        [],
    )
    digests = {one["name"]: one["digest"]["sha256"] for one in predicate["configuration"]}
    assert list(digests) == ["config.yaml", "run_record.json", "data/0", "mpitrain"]
    assert digests["data/0"] == record["data"][0]["sha256"]
    assert digests["mpitrain"] == package_sha256()


def test_gates_of_some_steps_are_about_a_checkpoint_alone(run: Path) -> None:
    found = json.loads((run / "certificate-steps-2.json").read_text())
    assert [one["name"] for one in found["subject"]] == ["checkpoint of step 2"]
    assert found["predicate"]["passedTests"] == ["ranks:1@steps=2"]
    assert checked(run, name="certificate-steps-2.json") == (True, [])
    for gates in (("repeat",), ("ranks:1@steps=1",)):
        with pytest.raises(UserError, match="is about checkpoint of step 2; these gates are about"):
            checked(run, *gates, name="certificate-steps-2.json")
    with pytest.raises(UserError, match="name fewer, or leave @steps out"):
        certify(CertificateRequest(run, ("repeat@steps=99",), run), print)


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("model.safetensors", ["model.safetensors", "weights"]),
        ("config.yaml", ["config.yaml"]),
        ("cice_history.nc", ["data/0"]),
    ],
)
def test_a_file_of_which_one_bit_has_changed_is_named(run: Path, tmp_path: Path, file: str, names: list[str]) -> None:
    copy = copied(run, tmp_path)
    content = bytearray((copy / file).read_bytes())
    content[-2] ^= 1
    (copy / file).write_bytes(content)
    passed, lines = checked(copy, data=(str(copy / "cice_history.nc"),))
    assert not passed
    assert [line.split(":")[1].strip() for line in lines] == names


def test_a_record_or_certificate_that_has_changed_is_named(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    record = (copy / "run_record.json").read_text()
    (copy / "run_record.json").write_text(record.replace('"wall_s": ', '"wall_s": 1'))
    assert checked(copy)[1][0].startswith("differs: run_record.json: ")
    (copy / "run_record.json").write_text(record.replace('"weights_sha256": "', '"weights_sha256": "0'))
    with pytest.raises(DataError, match="is not the model that run_record"):
        certify(CertificateRequest(copy, ("repeat",), tmp_path), print)
    (copy / "run_record.json").write_text(record)
    text = (copy / "certificate.json").read_text()
    for old, new in (("PASSED", "passed"), ('"passedTests"', '"passed"'), ('"sha256": "', '"sha256": "z'), ("{", "")):
        (copy / "certificate.json").write_text(text.replace(old, new))
        with pytest.raises(UserError, match="is no certificate of mpitrain, or a damaged one"):
            checked(copy)
    (copy / "certificate.json").write_text(text.replace("PASSED", "FAILED"))
    assert not checked(copy)[0]


def test_another_package_is_named_and_no_failure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpitrain.verify.certificate.package_sha256", lambda: "0" * 64)
    passed, (line,) = checked(run)
    assert passed
    assert line.endswith("in the certificate, 000000000000 here")
    assert line.startswith("differs: mpitrain: ")


def test_a_copy_is_checked_with_the_data_where_they_are_there(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    shutil.move(copy / "cice_history.nc", tmp_path / "mine.nc")
    words = ["--check-certificate", str(copy / "certificate.json"), "--output", str(tmp_path / "verify")]
    done = launch(["-m", "mpitrain", "verify", *words, "--gates", "restart", f"data.data_path={tmp_path}/m*.nc"])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{copy}/certificate.json: PASSED\n"
    assert "gate restart: the same bits" in done.stderr
    with pytest.raises(UserError, match="names 2 files, the run read 1"):
        checked(copy, data=(str(tmp_path / "mine.nc"), str(run / "cice_history.nc")))


class Runner:
    """Results by recipe, where there is one."""

    def __init__(self, weights: dict[int, str]) -> None:
        self.weights, self.trained = weights, list[Recipe]()

    def result_of(self, recipe: Recipe, num_steps: int | None = None) -> Result:
        self.trained.append(recipe)
        if recipe.num_ranks not in self.weights:
            raise MpitrainError("too many ranks")
        weights = self.weights[recipe.num_ranks]
        return Result({"model.a": np.array([float(len(weights))])}, {"global_step": num_steps or 9}, (), weights)


def tried(weights: dict[int, str], *names: str) -> tuple[Any, list[str]]:
    lines: list[str] = []
    runner: Any = Runner(weights)
    return try_gates(named_gates(names), runner, 1, 9, "aa", lines.append), lines


def test_what_differs_fails_and_what_cannot_be_tried_is_absent() -> None:
    found, lines = tried({1: "aa", 2: "b"}, "repeat", "ranks:1,2", "ranks:3", "restart")
    assert (found.passed, found.failed, found.sha256) == (("repeat", "restart"), ("ranks:1,2",), "aa")
    assert lines[1:3] == ["gate ranks:1,2: DIFFERS: SHA-256 of the weights b, not aa",
                          "gate ranks:3: not tried: too many ranks"]  # fmt: skip
    found, lines = tried({1: "aa", 2: "b"}, "ranks:2@steps=4", "repeat@steps=4")
    assert (found.passed, found.failed) == (("repeat@steps=4",), ("ranks:2@steps=4",))
    assert lines[0].startswith("gate ranks:2@steps=4: DIFFERS after step 4: model.a[0]: 2.0, here 1.0")
    with pytest.raises(MpitrainError, match="too many ranks"):
        tried({1: "aa"}, "ranks:2")


def test_trainings_of_gates_are_other_ones_than_what_they_are_compared_with() -> None:
    (recipe,) = named_gates(["ranks:1@steps=3"])[0].recipes(1, 3)
    assert recipe != Recipe(1)
    assert [one.settings for one in named_gates(["instruction-sets:native"])[0].recipes(2, 9)] == [
        ("compute.instruction_set=native",)
    ]
    assert named_gates(["restart"])[0].recipes(2, 9)[0].stop_at == 4
    with pytest.raises(UserError, match="one step only"):
        named_gates(["restart"])[0].recipes(2, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--certificate", "{run}", "--gates", "ranks:0"), "ranks:0: no such gate; there are repeat, restart"),
        (("--certificate", "{run}", "--gates", "repeat:1"), "repeat:1: no such gate"),
        (("--certificate", "{run}", "--gates", "instruction-sets"), "no such gate"),
        (("--certificate", "{run}", "--gates", "ranks:2@steps=x"), "such as ranks:2@steps=10"),
        (("--certificate", "{run}", "--gates", "ranks:2", "repeat@steps=1"), "give all gates the same @steps=N"),
        (("--certificate", "nowhere"), "nowhere/run_record.json: cannot be read"),
        (("--certificate", "{run}", "training.epochs=3"), "only data.data_path may change"),
        (("--certificate", "{run}", "--ranks", "2"), "only data.data_path may change"),
        (("--check-certificate", "{run}/config.yaml"), "is no certificate of mpitrain"),
        (("--gates", "repeat"), "are those of --certificate RUN"),
    ],
)
def test_wrong_words_are_refused(
    run: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *(word.replace("{run}", str(run)) for word in words)]) == UserError.exit_code
    assert message in capsys.readouterr().err


def test_the_certificate_of_an_older_run_goes_with_it(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    done = launch(["-m", "mpitrain", f"output.model_dir={copy}", *WORDS, "--overwrite"])
    assert done.returncode == 0, done.stderr
    assert list(copy.glob("certificate*")) == []
