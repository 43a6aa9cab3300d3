import pytest

from mpitrain.cluster.pmi import check_before_mpi_init, library_family, library_name, offered_pmi
from mpitrain.errors import LaunchError

pytestmark = pytest.mark.fast

MPICH_5 = "MPICH Version:      5.0.2\nMPICH Release date: 2026\nMPICH configure:    --with-device=ch4:ucx,ofi\n"


@pytest.mark.parametrize(
    ("text", "family", "name"),
    [
        ("MPICH Version:      5.0.2", "mpich", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost, ident: 5.0.11", "openmpi", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS", "intel", "Intel(R) MPI Library 2021.11 for Linux* OS"),
        ("MVAPICH2 Version      :\t2.3.7", "mpich", "MVAPICH2 2.3.7"),
        ("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", "mpich", "CRAY MPICH 8.1.25.17"),
        ("", "unknown", "unknown MPI"),
    ],
)
def test_libraries_are_recognised(text, family, name):
    assert library_family(text) == family
    assert library_name(text) == name


@pytest.mark.parametrize(
    ("environ", "kinds"),
    [
        ({}, ()),
        ({"PMI_HOSTNAME": "n1"}, ()),
        ({"PMI_FD": "7"}, ("pmi2",)),
        ({"PMIX_NAMESPACE": "slurm.pmix.4.0"}, ("pmix",)),
        ({"PMIX_RANK": "0", "PMI_RANK": "0"}, ("pmix", "pmi2")),
        ({"PALS_RANKID": "0"}, ("pals",)),
        ({"SLURM_MPI_TYPE": "none", "PMIX_RANK": "0"}, ()),
        ({"SLURM_MPI_TYPE": "none", "PMIX_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"}, ("pmix",)),
    ],
)
def test_offers(environ, kinds):
    assert offered_pmi(environ) == kinds


@pytest.mark.parametrize(
    ("started_by", "fix"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, "`srun --mpi=pmi2 -n 4 python -m mpitrain`"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "use MPICH's, .*/mpirun\" -n 2 python"),
    ],
)
def test_an_abort_inside_mpi_init_is_foreseen(started_by, fix):
    environ = {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.42.0", **started_by}
    with pytest.raises(LaunchError, match=rf"{fix}.*`env -u PMIX_RANK -u PMIX_NAMESPACE`"):
        check_before_mpi_init(environ, MPICH_5)


@pytest.mark.parametrize(
    ("environ", "library"),
    [
        ({"PMI_RANK": "0"}, MPICH_5),
        ({"PMIX_RANK": "0"}, MPICH_5.replace("--with-device", "--with-pmix --with-device")),
        ({"PMIX_RANK": "0"}, MPICH_5.replace("5.0.2", "4.2.1")),
        ({"PMIX_RANK": "0"}, "Open MPI v5.0.11, package"),
        ({"PMIX_RANK": "0"}, "MPICH Version: 5.0.2"),
    ],
)
def test_what_may_work_is_let_through(environ, library):
    check_before_mpi_init(environ, library)
    with pytest.raises(LaunchError):
        check_before_mpi_init({"PMIX_RANK": "0"}, MPICH_5)
