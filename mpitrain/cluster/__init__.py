"""Launch environment: launchers' variables, host lists, cores. Pure functions of a mapping; no torch, no MPI."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.cluster.cores import OVERSUBSCRIBED_VARIABLES, detect_affinity, detect_usable_core_count
    from mpitrain.cluster.cpu.compiler_flags import INSTRUCTION_SETS, instruction_flags
    from mpitrain.cluster.cpu.identity import detect_cpu
    from mpitrain.cluster.cpu.mixture import as_ranges
    from mpitrain.cluster.facts import package_versions
    from mpitrain.cluster.launchers import claimed_rank, is_set
    from mpitrain.cluster.own_python import finding_package, run_module
    from mpitrain.cluster.place import Place, read_place
    from mpitrain.cluster.pmi import check_before_mpi_init, library_name
    from mpitrain.cluster.starting import Starting, note_on_stderr, print_on_stderr
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "cores": ("OVERSUBSCRIBED_VARIABLES", "detect_affinity", "detect_usable_core_count"),
            "cpu.compiler_flags": ("INSTRUCTION_SETS", "instruction_flags"),
            "cpu.identity": ("detect_cpu",),
            "cpu.mixture": ("as_ranges",),
            "facts": ("package_versions",),
            "launchers": ("claimed_rank", "is_set"),
            "own_python": ("finding_package", "run_module"),
            "place": ("Place", "read_place"),
            "pmi": ("check_before_mpi_init", "library_name"),
            "starting": ("Starting", "note_on_stderr", "print_on_stderr"),
        },
    )
