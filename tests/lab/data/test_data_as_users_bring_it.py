"""Data as users bring it, through the public command: several files, no settings but the variables' names."""

from conftest import launch
from field_files import ramp, write_xy
from user_files import SIGMA, era5_old

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


def test_a_flux_is_learnt_to_its_noise_by_the_default_network_and_refused_where_it_never_can_be(tmp_path):
    case = era5_old(tmp_path)
    run = ["-m", "mpitrain", "train", "--data", str(case.files[0]), *case.settings]
    refused = launch([*run, "model.name=icenet"], cwd=tmp_path)
    assert refused.returncode == 2
    assert len(refused.our_lines) == 1
    assert "model.name=icenet: outputs range from 0 to 1, the target 'slhf' from -2" in refused.our_lines[0]
    assert refused.our_lines[0].endswith("set model.name=mlp, or exclude samples with domain.mask")
    done = launch([*run, "training.epochs=60"], num_ranks=2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loss = float(done.stdout.split("validation ")[-1].split()[0])
    variance = 2e5**2 * (1 + 0.25 + 1 + SIGMA**2)  # losses are measured in the target's deviation
    assert 0.9 < loss * variance / case.noise_mse < 1.1
    assert "NO BETTER" not in done.stdout
    bad = launch(
        [*run, "--output", "bad", "--epochs", "1", "--lr", "3.0", "training.global_batch_size=8"], cwd=tmp_path
    )
    assert bad.returncode == 0, bad.stderr
    assert "NO BETTER than " in bad.stdout
