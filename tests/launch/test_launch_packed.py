"""A packed environment in a job script: unpacked, used and taken away again; what is wrong with it ends the job."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from played_scheduler import PYTHON, Stage

from mpitrain.errors import UserError
from mpitrain.launch.checks import check_job
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS

ARCHIVE = "it's my.tar"


def pack(path: Path, name: str) -> None:
    with tarfile.open(path, "w") as archive:
        content = (PYTHON + 'echo "$0" >"$RECORDS/which"\n').encode()
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o755
        archive.addfile(member, io.BytesIO(content))


@pytest.fixture(params=["slurm", "pbs", "torque"])
def script(request: pytest.FixtureRequest) -> str:
    return SCHEDULERS[request.param].render(make_job_request(nodes=2, packed_environment=ARCHIVE, restarts=0))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path / "stage")
    made.environ["NODE_FOLDER"] = str(tmp_path)
    return made


@pytest.mark.lab
def test_ranks_run_what_was_unpacked_and_nothing_is_left(stage: Stage, script: str, tmp_path: Path) -> None:
    pack(stage.cwd / ARCHIVE, "./bin/python")
    done = stage.run(script)
    assert done.returncode == 0, done.stderr
    python = Path((stage.records / "which").read_text().strip())
    assert python.is_relative_to(tmp_path)
    assert python.parts[-3].startswith("mpitrain-environment-7")
    assert list(tmp_path.glob("mpitrain-environment-*")) == []


@pytest.mark.lab
def test_a_folder_of_somebody_elses_is_not_used(stage: Stage, script: str, tmp_path: Path) -> None:
    pack(stage.cwd / ARCHIVE, "./bin/python")
    (tmp_path / "elsewhere").mkdir()
    for job in ("77", "78"):
        (tmp_path / f"mpitrain-environment-{job}").symlink_to(tmp_path / "elsewhere")
    done = stage.run(script)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert "belongs to another user; set NODE_FOLDER to another folder" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "cannot be read"),
        ("./lib/python", "contains no bin/python; create it with: tar -C ENVIRONMENT -cf it's my.tar ."),
    ],
)
def test_an_archive_that_cannot_serve_is_one_line(stage: Stage, script: str, name: str | None, said: str) -> None:
    if name is not None:
        pack(stage.cwd / ARCHIVE, name)
    done = stage.run(script)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert done.stderr.startswith(ARCHIVE)
    assert said in done.stderr


def test_what_is_known_wrong_is_said_before_the_job_waits(tmp_path: Path) -> None:
    job = make_job_request(packed_environment=str(tmp_path / "none.tar"))
    assert "none.tar: no such file" in check_job(job, is_sent=False, scheduler=SCHEDULERS["slurm"])[0]
    with pytest.raises(UserError, match="no such file on this host; create it with: tar"):
        check_job(job, is_sent=True, scheduler=SCHEDULERS["pbs"])
    assert "--scheduler local cannot unpack it on the hosts" in (SCHEDULERS["local"].obstacle(job) or "")
