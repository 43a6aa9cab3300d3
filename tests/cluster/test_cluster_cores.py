import pytest

from mpitrain.cluster.cores import (
    detect_usable_core_count,
    oversubscription_warning,
    read_cgroup_cpu_max,
    threads_per_rank,
    usable_core_count,
)

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("affinity", "cpu_max", "cores"),
    [
        (range(8), None, 8),
        (range(8), "max 100000", 8),
        (range(8), "200000 100000", 2),
        (range(8), "250000 100000\n", 2),
        (range(8), "50000 100000", 1),
        (range(2), "800000 100000", 2),
        ({3}, None, 1),
        ([1, 1, 2], None, 2),
        ([], None, 1),
        (range(4), "", 4),
        (range(4), "nonsense", 4),
        (range(4), "100000 0", 4),
        (range(4), "-1 100000", 4),
    ],
)
def test_usable_core_count(affinity, cpu_max, cores):
    assert usable_core_count(affinity, cpu_max) == cores


def test_detection_survives_a_missing_quota_file_and_a_system_without_affinity(tmp_path, monkeypatch):
    assert read_cgroup_cpu_max(tmp_path / "absent") is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert read_cgroup_cpu_max(tmp_path / "cpu.max") == "max 100000"
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert 1 <= detect_usable_core_count() <= 3
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert detect_usable_core_count() == 1


@pytest.mark.parametrize(
    ("requested", "bits_promised", "cores", "local_world_size", "threads"),
    [
        (None, True, 16, 2, 1),
        (4, True, 16, 2, 4),
        (None, False, 16, 4, 4),
        (None, False, 16, 3, 5),
        (None, False, 2, 8, 1),
        (3, False, 2, 8, 3),
    ],
)
def test_threads_per_rank(requested, bits_promised, cores, local_world_size, threads):
    assert threads_per_rank(requested, bits_promised, cores, local_world_size) == threads


def test_oversubscription_is_told_in_one_line_with_what_to_do():
    assert oversubscription_warning(2, 4, 8, "n1") is None
    too_many_ranks = oversubscription_warning(8, 1, 2, "n1")
    assert too_many_ranks is not None
    assert too_many_ranks.startswith("n1: 8 ranks")
    assert "at most 2 rank(s)" in too_many_ranks
    too_many_threads = oversubscription_warning(2, 8, 8, "n1")
    assert too_many_threads is not None
    assert "training.threads_per_rank=4" in too_many_threads
    assert "16 cores" in too_many_threads
    assert "\n" not in too_many_ranks + too_many_threads
