"""Start and end of the ranks: find them, run one function on all, and always end them together."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import re
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from mpitrain.cluster import check_before_mpi_init, detect_affinity
from mpitrain.cluster.cores import read_cgroup_cpu_max, usable_core_count, wait_policy_variables
from mpitrain.cluster.meeting_point import master_address
from mpitrain.cluster.rank_info import RankClaim, RankInfo, rank_info_from_hosts
from mpitrain.cluster.reconcile import LaunchDecision, reconcile
from mpitrain.comm.agent.arrival import begin_watch, end_start, remove_own_shared_memory, reporting_failures, watch_all
from mpitrain.comm.agent.rank_side import NodeWatch
from mpitrain.comm.agent.words import AGREEING, IMPORTING_MPI, MEETING, MPI_INIT
from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.ranks import Ranks
from mpitrain.errors import LaunchError, MpitrainError, StoppedError, exit_code_of, one_line, pass_to_caller

_SECONDS_TO_SPEAK = 2.0
_SECONDS_FOR_AGENT = 30.0
_SECONDS_TO_LEARN = 1.0  # to find out why a connection broke
# gloo raises a plain RuntimeError: a lost connection is recognised by the text.
_BROKEN_CONNECTION = re.compile(r"[Cc]onnection|[Bb]roken pipe|[Ss]ocket|[Tt]imed out|[Nn]etwork")


def run_on_all_ranks(
    body: Callable[[Ranks], int], watch: NodeWatch | None = None, environ: Mapping[str, str] = os.environ
) -> int:
    """Start the ranks, run `body` on each, and return the exit code. Collective.

    Parameters
    ----------
    body : callable
        Function that receives the `Ranks` and returns this rank's exit code.
    watch : NodeWatch, optional
        The value of `watching_start`, if the start began before this module was loaded; default: register this rank.
    environ : mapping of str to str
        Environment variables with those of the launcher; default: the process's.

    Returns
    -------
    int
        The exit code of `body` on this rank, or that of an error that all ranks raise together. 3 if the ranks cannot
        start: then `body` is not called.

    Notes
    -----
    All processes of the launch must call it. All ranks return after the last one has ended `body`; torch's process
    group is destroyed before. Objects that exist at the call are excluded from garbage collection. Errors of `body` are
    not raised:

    * An MpitrainError that all ranks raise together (see `mark_agreed`; with one rank, each MpitrainError) is printed
      once, by the root.
    * Any other error is printed by the first rank that fails, and ends all ranks within seconds, with its exit code
      (130 for KeyboardInterrupt, 1 for any exception that is not an MpitrainError). The function does not return, not
      even with one rank.

    A LaunchError of the start is printed once. ImportError and OSError during the start are printed as LaunchErrors and
    end the process; the node's agent ends the other ranks.
    """
    gc.freeze()  # imported objects live as long as the process: exclude them from garbage collection
    gc.enable()
    try:
        watch = watch or begin_watch(environ)
        with reporting_failures(watch, environ):
            ranks = start_ranks(environ, watch)
            watch_all(ranks)
    except LaunchError as error:
        end_start(watch or NodeWatch(), error, environ)
        return error.exit_code
    try:
        exit_code = _run(ranks, body)
        _close(ranks)
    except BaseException as error:
        fail_alone(ranks, error)
    ranks.watch.leave()
    gc.freeze()  # the process ends: no garbage collection is needed
    return exit_code


def _run(ranks: Ranks, body: Callable[[Ranks], int]) -> int:
    """Return the exit code of `body`, or of an error that all ranks raise; the root prints the error. Collective."""
    try:
        return body(ranks)
    except MpitrainError as error:
        if ranks.world_size > 1 and not is_agreed(error):  # other ranks may be blocked in a collective
            raise
        if not pass_to_caller(error):
            kind = "error: " if error.exit_code != StoppedError.exit_code else ""
            ranks.say(*f"mpitrain: {kind}{error}".split("\n"), error=True)
        return error.exit_code


def fail_alone(ranks: Ranks, error: BaseException, details: str = "") -> NoReturn:
    """Print this rank's error, unless another rank has printed one, and abort the job. Does not return.

    `details` (default: the traceback) are written to failure.txt.
    """
    error = _cause_of(ranks, error)
    exit_code = exit_code_of(error)
    ranks.watch.fail(exit_code)
    is_another_ranks = isinstance(error, _OtherRanksError)
    location = "" if is_another_ranks else f"rank {ranks.rank} on {ranks.host}: "
    message = f"mpitrain: error: {location}{_one_line(error)}"
    kind = "details" if details else "traceback"
    details = details or "".join(traceback.format_exception(error))
    is_printed_there = is_another_ranks and not str(error)
    if not is_printed_there and _is_first_failure(ranks, message + "\n\n" + details):
        if isinstance(error, MpitrainError):
            pass_to_caller(error)
        _leave_exit_code(exit_code)
        kept = _kept_details(ranks, details)
        hint = f" ({kind} in {kept})" if kept else ""
        is_no_bug = isinstance(error, MpitrainError | KeyboardInterrupt)
        text = message + hint if kept or is_no_bug else message + "\n" + details
        print(text, file=sys.stderr, flush=True)  # noqa: T201
        ranks.watch.mark_said()
    else:
        # The rank that failed first must print its error before any rank aborts the job.
        ranks.watch.wait_until_said(_SECONDS_TO_SPEAK)
    sys.stdout.flush()
    if ranks.world_size > 1:
        ranks.cpu.abort(exit_code)
    os._exit(exit_code)  # MPICH's MPI_Abort may return before the launcher kills this process


def _kept_details(ranks: Ranks, details: str) -> Path | None:
    """Return the file with the details of the failure; None if it does not exist or is incomplete (disk full)."""
    path = ranks.failure_folder / "failure.txt" if ranks.failure_folder else None
    try:
        return path if path and path.stat().st_size >= len(details.encode()) else None
    except OSError:
        return None


def _leave_exit_code(exit_code: int) -> None:
    """Write the exit code to a file for a job script: the launcher may return that of a rank that it killed."""
    path = os.environ.get("MPITRAIN_EXIT_CODE_FILE")
    if path:
        with contextlib.suppress(OSError):
            Path(path).write_text(f"{exit_code}\n")


def _cause_of(ranks: Ranks, error: BaseException) -> BaseException:
    """Return the first failing rank's error if this rank's error is only a lost connection; otherwise `error`."""
    if not isinstance(error, RuntimeError) or ranks.transport != "torch" or ranks.world_size == 1:
        return error
    cause = ranks.watch.find_cause(_SECONDS_TO_LEARN)
    if cause is not None:
        return _OtherRanksError(*cause)
    text = str(error).splitlines()[0]
    if _BROKEN_CONNECTION.search(text):
        return LaunchError(f"lost the connection to another rank ({text}); see whether a process or a host has ended")
    return error


class _OtherRanksError(MpitrainError):
    """Another rank's failure, with its exit code. The text is empty if that rank prints its own error."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def _one_line(error: BaseException) -> str:
    if isinstance(error, MpitrainError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return one_line(f"{type(error).__name__}: {error}".splitlines()[0])


def _is_first_failure(ranks: Ranks, text: str) -> bool:
    # If several ranks fail at once (a lost connection fails all), the one that creates the file prints its error.
    if not ranks.watch.claim():
        return False
    if ranks.failure_folder is None:
        return True
    try:
        with (ranks.failure_folder / "failure.txt").open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _close(ranks: Ranks) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    # A launcher kills the other ranks when one exits with an error: no rank exits before the root has printed.
    ranks.cpu.barrier()
    ranks.watch.unfollow()
    dist: Any = sys.modules.get("torch.distributed")  # a run that never loaded torch has none
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()


def start_ranks(environ: Mapping[str, str], watch: NodeWatch | None = None) -> Ranks:
    """Find the ranks: query MPI first, then check against every launcher's variables. Collective.

    `watch` times every stage. Raises LaunchError if MPI and the variables contradict each other.
    """
    watch = watch or NodeWatch()
    mpi = _start_mpi(environ, watch)
    claim = mpi and RankClaim("MPI", mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())
    decision = _decide_together(mpi, claim, environ)
    ranks = _mpi_ranks(mpi, decision) if decision.transport == "mpi" else _torch_ranks(decision, environ, watch)
    ranks.watch = watch
    watch.enter(AGREEING)
    watch.follow(ranks.cpu.notes)
    return ranks


def _decide_together(mpi: Any, claim: RankClaim | None, environ: Mapping[str, str]) -> LaunchDecision:
    """Call `reconcile` on every rank of MPI_COMM_WORLD; raise on all ranks if it fails on one. Collective."""
    decision, failure = None, None
    try:
        decision = reconcile(claim, environ, mpi.Get_library_version() if mpi else "")
    except LaunchError as error:
        failure = error.args
    # A rank number may be wrong on some ranks only: the others must neither begin nor block in MPI_Finalize.
    failures = mpi.COMM_WORLD.allgather(failure) if mpi else [failure]
    failure = next(filter(None, failures), None)
    if decision is None or failure is not None:
        raise LaunchError(*(failure or ()))
    return decision


def _start_mpi(environ: Mapping[str, str], watch: NodeWatch) -> Any:
    """Return mpi4py's MPI module, initialised; None if no MPI library can be loaded."""
    watch.enter(IMPORTING_MPI)
    # Some sites forbid MPI on login nodes, and importing mpi4py.MPI initialises it: import it only to start a run.
    import mpi4py

    # Some libraries abort in MPI_Init without a message of this package: check the library's version first.
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = True
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # mpi4py raises either if this machine has no MPI library
        return None
    if not MPI.Is_initialized():
        check_before_mpi_init(environ, MPI.Get_library_version())
        for name, value in wait_policy_variables(environ, os.cpu_count() or 1, read_cgroup_cpu_max()).items():
            os.environ.setdefault(name, value)
        watch.enter(MPI_INIT)
        # The thread level affects bits: below MULTIPLE, MPICH changes the order of Allreduce after a few calls.
        with warnings.catch_warnings():
            # mpi4py warns on every rank of a wrong launcher; `reconcile` raises it once, as an error with advice.
            warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if MPI.COMM_WORLD.Get_size() == 1:  # no other rank opens its shared memory
        remove_own_shared_memory()
    return MPI


def _mpi_ranks(mpi: Any, decision: LaunchDecision) -> Ranks:
    from mpitrain.comm.mpi.communicator import MpiCommunicator

    communicator = MpiCommunicator(mpi.COMM_WORLD)
    node = communicator.split_by_node()
    # A node is identified by its first rank: correct also if host names are not unique and for uneven layouts.
    nodes = communicator.all_gather_object(str(node.bcast(communicator.rank)))
    node.Free()
    info = rank_info_from_hosts(communicator.rank, nodes, "MPI")
    cores = _count_node_cores(communicator, info.node_rank)
    communicator.is_patient = any(communicator.all_gather_object(info.local_world_size > cores))
    return Ranks(info, communicator, communicator, "mpi", socket.gethostname(), cores, list(decision.notices))


def _count_node_cores(communicator: Communicator, node_rank: int) -> int:
    # mpirun often binds each rank to one core: the usable cores are the union of the masks of the node's ranks.
    masks = communicator.all_gather_object((node_rank, detect_affinity()))
    return usable_core_count(
        frozenset().union(*(mask for node, mask in masks if node == node_rank)), read_cgroup_cpu_max()
    )


def _torch_ranks(decision: LaunchDecision, environ: Mapping[str, str], watch: NodeWatch) -> Ranks:
    import torch.distributed as dist

    from mpitrain.comm.torch_backend import TorchCommunicator

    rank, world_size = decision.claim.rank or 0, decision.claim.world_size or 1
    try:
        # Longer than the limit of the start: the agent reports first, since it can name the missing rank.
        timeout = datetime.timedelta(seconds=watch.limit_s + _SECONDS_FOR_AGENT)
        store = _launcher_store(environ, decision.claim, timeout, watch)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    except (RuntimeError, ValueError) as error:  # raised by torch for a timeout and for an invalid port
        raise LaunchError(
            f"rank {rank}: the ranks did not connect: {str(error).splitlines()[0]}; check MASTER_ADDR and MASTER_PORT"
        ) from error
    communicator = TorchCommunicator()
    hosts = communicator.all_gather_object(socket.gethostname())
    info = rank_info_from_hosts(rank, hosts, decision.claim.source)
    cores = _count_node_cores(communicator, info.node_rank)
    notices = [*decision.notices, *_secret_notices(info, environ)]
    return Ranks(info, communicator, communicator, "torch", hosts[rank], cores, notices)


def _secret_notices(info: RankInfo, environ: Mapping[str, str]) -> list[str]:
    from mpitrain.comm.tcp.meeting import SECRET_VARIABLE

    if info.num_nodes == 1 or environ.get(SECRET_VARIABLE):
        return []
    return [
        f"the ranks of {info.num_nodes} hosts connected without a secret: any process that reaches MASTER_PORT can "
        f"disturb the run; set {SECRET_VARIABLE} to the same random text on all ranks, as `mpitrain launch` scripts do"
    ]


def _launcher_store(environ: Mapping[str, str], claim: RankClaim, timeout: datetime.timedelta, watch: NodeWatch) -> Any:
    import torch.distributed as dist

    from mpitrain.comm.tcp.meeting import is_loopback, open_store_at, use_loopback_for_gloo

    rank, world_size = claim.rank or 0, claim.world_size or 1
    if world_size == 1:
        return dist.HashStore()
    meeting_point = master_address(environ)
    if meeting_point is None:
        raise LaunchError(
            "no rendezvous address for the ranks; set MASTER_ADDR (rank 0's host) and MASTER_PORT (a free port there)"
        )
    # Under torchrun the launcher's process already serves this store; otherwise rank 0 does.
    is_served = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_one_node = claim.num_nodes == 1 or claim.local_world_size == world_size
    if is_one_node and not is_served:
        meeting_point = ("127.0.0.1", meeting_point[1])
    if is_one_node or is_loopback(meeting_point[0]):
        use_loopback_for_gloo()
    watch.enter(MEETING, where=f"{meeting_point[0]}:{meeting_point[1]}")
    return open_store_at(meeting_point, rank, world_size, is_served, timeout)
