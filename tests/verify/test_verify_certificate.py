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
from mpitrain.errors import DataError, LaunchError, MpitrainError, UserError
from mpitrain.models.files.own_file import read_own_model, write_own_model
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
) -> tuple[str, list[str]]:  # fmt: skip
    """The verdict of a check, and its lines."""
    lines: list[str] = []
    verdict = check(run / name, CertificateRequest(run, gates, run.with_name("checks"), data), lines.append)
    return verdict, [line for line in lines if line != "hashing the files"]


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
    assert checked(run, name="certificate-steps-2.json") == ("NOT ALL TRIED", [])
    for gates in (("repeat",), ("ranks:1@steps=1",)):
        with pytest.raises(UserError, match="is about checkpoint of step 2; these gates are about"):
            checked(run, *gates, name="certificate-steps-2.json")
    with pytest.raises(UserError, match="name fewer, or leave @steps out"):
        certify(CertificateRequest(run, ("repeat@steps=99",), run), print)


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("model.safetensors", ["model.safetensors"]),
        ("config.yaml", ["config.yaml"]),
        ("cice_history.nc", ["data/0"]),
    ],
)
def test_a_file_of_which_one_bit_has_changed_is_named(run: Path, tmp_path: Path, file: str, names: list[str]) -> None:
    copy = copied(run, tmp_path)
    content = bytearray((copy / file).read_bytes())
    content[-2] ^= 1
    (copy / file).write_bytes(content)
    verdict, lines = checked(copy, data=(str(copy / "cice_history.nc"),))
    assert verdict == "FAILED"
    assert [line.split(":")[1].strip() for line in lines] == names


def test_what_is_not_the_run_s_is_not_certified(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    record, settings = ((copy / name).read_text() for name in ("run_record.json", "config.yaml"))
    words = "--certificate", str(copy), "--output", str(tmp_path / "verify")
    (copy / "config.yaml").write_text(settings.replace("hidden_size: 4", "hidden_size: 5"))
    with pytest.raises(DataError, match="not the settings in run_record"):
        certify(CertificateRequest(copy, ("repeat",), tmp_path), print)
    (copy / "config.yaml").write_text(settings)
    (copy / "run_record.json").write_text(record.replace('"compiled"', '"eager"'))
    with pytest.raises(UserError, match="engine is eager, which no instruction set changes"):
        certify(CertificateRequest(copy, ("instruction-sets:native",), tmp_path), print)
    (copy / "run_record.json").write_text(record)
    model = read_own_model(copy / "model.safetensors")
    model.model.state_dict()["input_mean"][0] += 1
    write_own_model(model.model, copy / "model.safetensors", model.description)
    done = launch(["-m", "mpitrain", "verify", *words])
    assert (done.returncode, done.stdout) == (1, f"{copy}/certificate.json: FAILED\n"), done.stderr
    assert "gate repeat: DIFFERS: the SHA-256 of the model file without the identity of its run\n" in done.stderr
    assert json.loads((copy / "certificate.json").read_text())["predicate"]["failedTests"] == ["repeat"]
    assert checked(copy) == ("FAILED", ["failed when it was written: repeat"])
    assert list((tmp_path / "verify").iterdir()) == []


def test_a_record_or_certificate_that_has_changed_is_named(run: Path, tmp_path: Path) -> None:
    copy = copied(run, tmp_path)
    record = (copy / "run_record.json").read_text()
    (copy / "run_record.json").write_text(record.replace('"wall_s": ', '"wall_s": 1'))
    assert checked(copy)[1][0].startswith("differs: run_record.json: ")
    (copy / "run_record.json").write_text(record.replace('"weights_sha256": "', '"weights_sha256": "no '))
    with pytest.raises(UserError, match="holds no SHA-256 of the weights"):
        checked(copy)
    (copy / "run_record.json").write_text(record)
    text = (copy / "certificate.json").read_text()
    changes = [("PASSED", "passed"), ('"passedTests"', '"passed"'), ('"sha256": "', '"sha256": "z'), ("{", "")]
    changes += [('"repeat",', '"everything",'), ('"name": "config.yaml"', '"name": "weights"')]
    for old, new in (*changes, ('"sha256"', '"sha512"'), (text, text[: text.index('"subject"')] + '"subject": []}')):
        (copy / "certificate.json").write_text(text.replace(old, new))
        with pytest.raises(UserError, match="is not a certificate of mpitrain, or is damaged"):
            checked(copy)
    for old, new in (("PASSED", "FAILED"), ('"repeat",\n   "ranks:1"', "")):
        assert old in text
        (copy / "certificate.json").write_text(text.replace(old, new))
        assert checked(copy) == ("FAILED", ["failed when it was written: no gate passed"])


def test_another_package_is_named_and_no_failure(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpitrain.verify.certificate.package_sha256", lambda: "0" * 64)
    verdict, (line,) = checked(run)
    assert verdict == "PASSED"
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
    with pytest.raises(UserError, match="2 data files are named, the run read 1"):
        checked(copy, data=(str(tmp_path / "mine.nc"), str(run / "cice_history.nc")))


class Runner:
    """Results by recipe, where there is one."""

    def __init__(self, weights: dict[int, str]) -> None:
        self.weights = weights

    def result_of(self, recipe: Recipe, num_steps: int | None = None) -> Result:
        weights = self.weights.get(recipe.num_ranks)
        if weights is None:
            raise MpitrainError("no such node")
        state = {"global_step": 1 if weights == "stopped" else num_steps or 9}
        model = ("", "") if weights == "stopped" else (weights, "model")
        return Result({"model.a": np.array([float(len(weights))])}, state, (), model)


def tried(weights: dict[int, str], *names: str) -> tuple[Any, list[str]]:
    lines: list[str] = []
    runner: Any = Runner(weights)
    return try_gates(named_gates(names), runner, 1, 9, ("aa", "model"), lines.append), lines


def test_what_differs_fails_and_what_cannot_be_tried_is_absent() -> None:
    found, lines = tried({1: "aa", 2: "b", 4: "stopped"}, "repeat", "ranks:1,2", "ranks:3", "restart", "ranks:4")
    assert (found.passed, found.failed, found.checkpoint) == (("repeat", "restart"), ("ranks:1,2",), "")
    assert lines[1:3] == ["gate ranks:1,2: DIFFERS: the SHA-256 of the weights",
                          "gate ranks:3: not tried: no such node"]  # fmt: skip
    assert lines[4] == "gate ranks:4: not tried: a training was interrupted, after 1 steps; try again"
    found, lines = tried({1: "aa", 2: "b", 4: "stopped"}, "ranks:2@steps=4", "repeat@steps=4", "ranks:4@steps=4")
    assert (found.passed, found.failed) == (("repeat@steps=4",), ("ranks:2@steps=4",))
    assert lines[0].startswith("gate ranks:2@steps=4: DIFFERS: after step 4: model.a[0]: 2.0, here 1.0")
    with pytest.raises(MpitrainError, match="no such node"):
        tried({1: "aa"}, "ranks:2")
    with pytest.raises(LaunchError, match="99999 ranks are too many for this machine"):
        tried({1: "aa"}, "ranks:99999")


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
        (("--certificate", "{run}", "--gates", f"ranks:{'9' * 5000}"), "no such gate"),
        (("--certificate", "{run}", "--gates", "repeat:1"), "repeat:1: no such gate"),
        (("--certificate", "{run}", "--gates", "instruction-sets"), "no such gate"),
        (("--certificate", "{run}", "--gates", "ranks:2@steps=x"), "such as ranks:2@steps=10"),
        (("--certificate", "{run}", "--gates", "ranks:2", "repeat@steps=1"), "give all gates the same @steps=N"),
        (("--certificate", "nowhere"), "nowhere/run_record.json: cannot be read"),
        (("--certificate", "{run}", "training.epochs=3"), "only data.data_path may be changed"),
        (("--certificate", "{run}", "--ranks", "2"), "only data.data_path may be changed"),
        (("--check-certificate", "{run}/config.yaml"), "is not a certificate of mpitrain"),
        (("--gates", "repeat"), "needs --certificate RUN"),
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


def test_a_resumed_run_is_told_why_its_gates_may_differ(run: Path, tmp_path: Path) -> None:
    copy, lines = copied(run, tmp_path), list[str]()
    done = launch(["-m", "mpitrain", "train", str(copy / "config.yaml"), "--resume", "training.epochs=2",
                   f"output.model_dir={copy}"])  # fmt: skip
    assert done.returncode == 0, done.stderr
    certify(CertificateRequest(copy, ("repeat",), tmp_path / "verify"), lines.append)
    assert any(line.startswith("note: the run was resumed: a setting may have changed") for line in lines)
    (copy / "model.safetensors").unlink()
    with pytest.raises(DataError, match="no such file, as in members of ensembles"):
        certify(CertificateRequest(copy, ("repeat",), tmp_path), print)
