"""Data as users bring it, through the public command: several files, no settings but the variables' names."""

from conftest import launch
from field_files import ramp, write_xy

NAMES = ("variables.input_variables=[x]", "variables.output_variables=[y]")


def test_several_unquoted_files_that_are_no_cice_history(tmp_path):
    for number in (1, 2, 10):
        write_xy(tmp_path / f"run_{number}.nc", ramp(60 * number) / 600, ramp(60 * number) / 1200)
    (tmp_path / "run.yaml").write_text("training: {epochs: 1}\n")
    words = ["--data", "run_1.nc", "run_2.nc", "run_10.nc", "run.yaml", *NAMES]
    done = launch(["-m", "mpitrain", "train", *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "training samples of run_1.nc run_2.nc run_10.nc" in done.stdout
    assert "1 epoch, " in done.stdout
    assert sum(int(part.split()[0]) for part in samples_line(done).split(", ")[:2]) == 180


def samples_line(done):
    """The numbers of samples at the end of a run."""
    return next(line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("Samples"))
