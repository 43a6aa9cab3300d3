"""Run by test_comm_collectives.py under mpirun: `python -m mpi4py collectives_program.py RESULTS`.

Every check compares with a closed form in rank and size. Rank 0 writes the names of those that all ranks passed, one a
line, into RESULTS/passed.txt, and the reducers' sums into RESULTS. A failing check ends all ranks (mpi4py's runner).
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from order_sensitive_rows import NUM_VIRTUAL_RANKS, order_sensitive_rows
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from mpitrain.comm.agreement import is_agreed, on_all_ranks
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.mpi import communicator as mpi_communicator
from mpitrain.comm.mpi import half_precision
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.half_precision import all_reduce_halves
from mpitrain.comm.mpi.process_group import BACKEND_NAME, MpiProcessGroup, register_mpi_backend
from mpitrain.comm.mpi.tensor_memory import TensorMemory
from mpitrain.comm.reduction import FixedTreeReducer, LibraryReducer
from mpitrain.comm.tcp.meeting import open_store_over
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.errors import ConfigError, DataError, LaunchError, MpitrainError

RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
LAST = SIZE - 1
TIMEOUT = datetime.timedelta(seconds=60)
FLOATS = (torch.float32, torch.float64, torch.int64)

# torch 2.13's names; earlier versions know only the second ones, which it calls deprecated.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Check = Callable[[], None]


def equal(found: torch.Tensor, expected: object) -> None:
    wanted = torch.as_tensor(expected, dtype=found.dtype)
    assert torch.equal(found, wanted), f"rank {RANK} of {SIZE}: {found} is not {wanted}"


def error_of(action: Callable[[], object]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def refused(kind: type[Exception], words: str, action: Callable[[], object]) -> None:
    error = error_of(action)
    assert isinstance(error, kind), f"{error!r} is no {kind.__name__}"
    assert words in str(error), f"{error!r} does not say {words!r}"


# ---------------------------------------------------------------------------------------- Communicator


def check_all_reduce(comm: Communicator) -> None:
    for dtype in FLOATS:
        for operation, expected in (("sum", SIZE * (SIZE + 1) // 2), ("min", 1), ("max", SIZE)):
            tensor = torch.full((2, 3), RANK + 1, dtype=dtype)
            comm.all_reduce(tensor, operation)
            equal(tensor, [[expected] * 3] * 2)


def check_all_gather(comm: Communicator) -> None:
    counts = [(rank + 1) % 3 for rank in range(SIZE)]  # rank 2 holds no row
    for dtype in FLOATS:
        mine = torch.full((counts[RANK], 2), RANK, dtype=dtype)
        equal(comm.all_gather(mine, counts), [[rank] * 2 for rank in range(SIZE) for _ in range(counts[rank])])


def check_exchange(comm: Communicator) -> None:
    partner = RANK ^ 1
    if partner < SIZE:
        equal(comm.exchange(torch.arange(4.0) + 10 * RANK, partner), [10 * partner + i for i in range(4)])


def check_broadcast(comm: Communicator) -> None:
    for root in {0, LAST}:
        tensor = torch.full((3,), float(RANK))
        comm.broadcast(tensor, root)
        equal(tensor, [root] * 3)


def check_numpy(comm: Communicator) -> None:
    """The same verbs on numpy's arrays, which come back as such."""
    counts = [rank + 1 for rank in range(SIZE)]
    for kind in (np.float32, np.float64, np.int64):
        own = np.full((RANK + 1, 2), RANK, kind)
        gathered = comm.all_gather(own, counts)
        assert isinstance(gathered, np.ndarray)
        assert gathered.tolist() == [[rank, rank] for rank in range(SIZE) for _ in range(rank + 1)]
        total = np.array([RANK, 1], kind)
        comm.all_reduce(total)
        assert total.tolist() == [SIZE * (SIZE - 1) // 2, SIZE]
        lowest = np.array([RANK + 5], kind)
        comm.all_reduce(lowest, "min")
        assert lowest.tolist() == [5]
        sent = np.array([[10 * RANK + to] for to in range(SIZE)], kind)
        arrived = comm.all_to_all_rows(sent, [1] * SIZE, [1] * SIZE)
        assert isinstance(arrived, np.ndarray)
        assert arrived[:, 0].tolist() == [10 * rank + RANK for rank in range(SIZE)]
        known = np.full(3, RANK, kind)
        comm.broadcast(known, SIZE - 1)
        assert known.tolist() == [SIZE - 1] * 3
        partner = RANK ^ 1
        if partner < SIZE:
            received = comm.exchange(np.array([RANK], kind), partner)
            assert isinstance(received, np.ndarray)
            assert received.tolist() == [partner]


def check_objects(comm: Communicator) -> None:
    assert (comm.rank, comm.size) == (RANK, SIZE)
    assert comm.broadcast_object({"from": RANK}) == {"from": 0}
    assert comm.broadcast_object(("from", RANK), LAST) == ("from", LAST)
    assert comm.all_gather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]
    comm.barrier()


def check_together(comm: Communicator) -> None:
    assert on_all_ranks(comm, lambda: RANK * 2) == RANK * 2
    first = min(1, LAST)

    def fails_from_first() -> None:
        if first <= RANK:
            raise (DataError if first == RANK else ConfigError)(f"no file on {RANK}")

    error = error_of(lambda: on_all_ranks(comm, fails_from_first))
    assert type(error) is DataError
    assert is_agreed(error)
    alone = f"no file on {first}"
    where = f"rank {first} on {MPI.Get_processor_name()} ({SIZE - 1} of {SIZE} ranks): "
    assert str(error) == (alone if first == 0 else where + alone), error
    refused(DataError, "none on 0", lambda: on_all_ranks(comm, lambda: _raise(DataError(f"none on {RANK}"))))
    assert on_all_ranks(comm, lambda: "afterwards all go on") == "afterwards all go on"


def _raise(error: MpitrainError) -> None:
    raise error


def check_reducers(comm: Communicator, results: Path, name: str) -> None:
    plan = VirtualRanks(NUM_VIRTUAL_RANKS, SIZE, RANK)
    mine = torch.from_numpy(order_sensitive_rows())[plan.owned.start : plan.owned.stop].contiguous()
    sums = {"fixed": FixedTreeReducer(comm, plan).reduce(mine), "any": LibraryReducer(comm).reduce(mine)}
    for kind, total in sums.items():
        everywhere = comm.all_gather_object(total.numpy().tobytes())
        assert set(everywhere) == {everywhere[0]}, f"{kind}: the ranks hold different sums"
        if RANK == 0:
            np.save(results / f"{name}-{kind}.npy", total.numpy())


def check_all_to_all_rows(comm: Communicator) -> None:
    # Rank r sends (r + 2 q) mod 3 rows to rank q, each with the values 100 r + q and 1000 row + column.
    sends = [[(r + 2 * q) % 3 for q in range(SIZE)] for r in range(SIZE)]
    for dtype in FLOATS:
        for width in (2, 0):
            mine = torch.cat([_rows(RANK, q, sends[RANK][q], width, dtype) for q in range(SIZE)])
            wanted = torch.cat([_rows(r, RANK, sends[r][RANK], width, dtype) for r in range(SIZE)])
            found = comm.all_to_all_rows(mine, sends[RANK], [sends[r][RANK] for r in range(SIZE)])
            assert found.shape == wanted.shape
            equal(found, wanted)


def _rows(source: int, target: int, number: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    places = 1000 * torch.arange(number)[:, None, None] + torch.arange(width)[None, :, None]
    return (places + torch.tensor([100 * source + target, 0])).to(dtype)


def check_rows_in_rounds(comm: Communicator) -> None:
    """Messages of at most 5 rows stand for messages of at most 2^30 bytes."""
    largest = mpi_communicator.LARGEST_MESSAGE_BYTES
    mpi_communicator.LARGEST_MESSAGE_BYTES = 5 * 3 * 8 + 1
    try:
        sends = [[7 * ((r + q) % 3) for q in range(SIZE)] for r in range(SIZE)]
        mine = torch.cat([torch.arange(3.0 * n).view(n, 3) + 100 * RANK for n in sends[RANK]]).double()
        wanted = torch.cat([torch.arange(3.0 * sends[r][RANK]).view(-1, 3) + 100 * r for r in range(SIZE)]).double()
        equal(comm.all_to_all_rows(mine, sends[RANK], [sends[r][RANK] for r in range(SIZE)]), wanted)
    finally:
        mpi_communicator.LARGEST_MESSAGE_BYTES = largest


def check_node_shared(comm: Communicator) -> None:
    for dtype in FLOATS:
        shared = comm.node_shared_array((5, 3), str(dtype).removeprefix("torch."))
        assert (shared.local_rank, shared.local_world_size, shared.fills) == (RANK, SIZE, RANK == 0)
        if shared.fills:
            shared.array[...] = np.arange(15).reshape(5, 3)
        shared.publish()
        equal(torch.as_tensor(shared.array), torch.arange(15).view(5, 3))
        comm.barrier()
        if RANK == LAST:  # the same memory, not copies of it
            shared.array[4, 2] = 70
        shared.publish()
        equal(torch.as_tensor(shared.array[4, 1:]), [13, 70])
        shared.close()
    empty = comm.node_shared_array((0, 3), np.float32)
    assert empty.array.shape == (0, 3)
    empty.close()
    comm.node_shared_array((4,), np.float32)  # never closed: the end of the ranks must not mind


def check_shared_memory_room(comm: Communicator) -> None:
    error = error_of(lambda: comm.node_shared_array((1 << 55,), np.float32))
    assert isinstance(error, LaunchError)
    assert is_agreed(error)
    assert "let each rank keep its own copy" in str(error)


def check_no_shared_memory(comm: Communicator) -> None:
    refused(LaunchError, "needs MPI", lambda: comm.node_shared_array((2,), np.float32))


class CountingComm:
    """Counts the bytes that this rank hands to MPI to be sent to others."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm, self.sent_bytes = comm, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._comm, name)

    def Alltoallv(self, sent: list, received: list) -> None:
        self.sent_bytes += sum(count for rank, count in enumerate(sent[1]) if rank != RANK) * sent[2].Get_size()
        self._comm.Alltoallv(sent, received)

    def Allgatherv(self, sent: list, received: list) -> None:
        self.sent_bytes += sent[0].nbytes * (SIZE - 1)
        self._comm.Allgatherv(sent, received)


def check_half_precision(comm: Communicator) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        for num_values in (1, 2, 7, 64, 1001):
            rows = half_rows(num_values, dtype)
            total = sum(row.float() for row in rows)  # in rank order, as every rank must
            for name, wanted in (("sum", total), ("min", rows.amin(0)), ("max", rows.amax(0))):
                tensor = rows[RANK].clone()
                comm.all_reduce(tensor, name)
                equal(tensor.view(torch.int16), wanted.to(dtype).view(torch.int16))
    if SIZE >= 3:  # in rank order: 2^24 + 1 is 2^24 in float32, and 1 would be left in any other order
        order = torch.tensor([2.0**24, 1.0, -(2.0**24), *[0.0] * (SIZE - 3)], dtype=torch.bfloat16)
        tensor = order[RANK].expand(5).clone()
        comm.all_reduce(tensor)
        equal(tensor, [0] * 5)
    # Rounded once: each step of 1 + 2^-9 + ... in float16 would fall back to 1 or drift.
    small = torch.full((3,), 1.0 if RANK == 0 else 2.0**-11, dtype=torch.float16)
    comm.all_reduce(small)
    equal(small, torch.tensor(1 + (SIZE - 1) * 2.0**-11).half().expand(3))


def half_rows(num_values: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randn(SIZE, num_values, generator=generator).to(dtype)


def check_width_on_the_wire(comm: MpiCommunicator) -> None:
    counting, num_values = CountingComm(comm.mpi_comm), 1000
    values = torch.ones(num_values, dtype=torch.bfloat16)
    all_reduce_halves(counting, TensorMemory(MPI), values, "sum")
    equal(values, [SIZE] * num_values)
    sent_bytes = comm.all_gather_object(counting.sent_bytes)
    # Each value leaves a rank at most twice, once to be added and once as a result of this rank's part.
    assert sum(sent_bytes) == 2 * 2 * num_values * (SIZE - 1), sent_bytes
    pieces, half_precision.CHUNK_VALUES = half_precision.CHUNK_VALUES, 7
    values = torch.arange(100, dtype=torch.float16)
    all_reduce_halves(counting, TensorMemory(MPI), values, "sum", SIZE)
    half_precision.CHUNK_VALUES = pieces
    equal(values, list(range(100)))


def check_refusals(comm: Communicator) -> None:
    refused(TypeError, "MPI has no sum for torch.bool", lambda: comm.all_reduce(torch.ones(2, dtype=torch.bool)))
    refused(ValueError, "contiguous", lambda: comm.all_reduce(torch.ones(2, 3).t()))


# ---------------------------------------------------------------------------------- torch.distributed


def group_all_reduce() -> None:
    expected = {
        dist.ReduceOp.SUM: SIZE * (SIZE + 1) / 2, dist.ReduceOp.PRODUCT: math.factorial(SIZE),
        dist.ReduceOp.MIN: 1, dist.ReduceOp.MAX: SIZE, dist.ReduceOp.AVG: (SIZE + 1) / 2,
    }  # fmt: skip
    for operation, value in expected.items():
        for tensor in (torch.full((2, 3), RANK + 1.0), torch.full((3, 2), RANK + 1.0).t()):
            dist.all_reduce(tensor, operation)
            equal(tensor, [[value] * 3] * 2)
    counted = torch.tensor([RANK])
    work = dist.all_reduce(counted, async_op=True)
    work.wait()
    assert work.is_completed()
    equal(counted, [SIZE * (SIZE - 1) // 2])


def group_half_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        rows = half_rows(33, dtype)
        total = sum(row.float() for row in rows)
        wanted = {
            dist.ReduceOp.SUM: total, dist.ReduceOp.AVG: total / SIZE, dist.ReduceOp.MAX: rows.amax(0),
            dist.ReduceOp.PRODUCT: math.prod(row.float() for row in rows),
        }  # fmt: skip
        for operation, value in wanted.items():
            tensor = rows[RANK].clone()
            dist.all_reduce(tensor, operation)
            equal(tensor, value.to(dtype))
        at_last = rows[RANK].clone()
        dist.reduce(at_last, LAST)
        equal(at_last, total.to(dtype) if RANK == LAST else rows[RANK])
        part = torch.empty(3, dtype=dtype)
        reduce_scatter_single(part, rows[RANK][:3].repeat(SIZE), dist.ReduceOp.AVG)
        equal(part, (total[:3] / SIZE).to(dtype))


def group_compressed_gradients() -> None:
    """DistributedDataParallel's fp16 hook: half precision on the wire, so another gradient, but near."""
    gradients = []
    for compressed in (False, True):
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Linear(5, 6))
        if compressed:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        model(torch.full((4, 5), 0.1 * (RANK + 1))).square().mean().backward()
        gradients.append(model.module.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=5e-3, atol=1e-4)
    assert not torch.equal(gradients[1], gradients[0])


def group_finished_work() -> None:
    """A work that is handed out holds its own call's tensors; a synchronous call makes none."""
    first, second = torch.ones(2), torch.ones(3)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (first, second)]
    for work, tensor in zip(works, (first, second), strict=True):
        (held,) = work.get_future().value()
        assert held.data_ptr() == tensor.data_ptr()
    leaf = torch.nn.Parameter(torch.ones(2))
    dist.all_reduce(leaf)
    equal(leaf.detach(), [SIZE] * 2)


def group_refusals() -> None:
    refused(TypeError, "MPI has no sum", lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool)))
    refused(ValueError, "no reduction", lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), dist.ReduceOp.BXOR))


def group_reduce() -> None:
    for operation, value in ((dist.ReduceOp.SUM, SIZE * (SIZE + 1) / 2), (dist.ReduceOp.AVG, (SIZE + 1) / 2)):
        tensor = torch.full((3,), RANK + 1.0)
        dist.reduce(tensor, LAST, operation)
        equal(tensor, [value if RANK == LAST else RANK + 1] * 3)


def group_broadcast() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.complex64):
        tensor = torch.full((4,), RANK == LAST).to(dtype)
        dist.broadcast(tensor, LAST)
        equal(tensor, [1] * 4)
    strided = torch.full((3, 2), float(RANK)).t()
    dist.broadcast(strided, LAST)
    equal(strided, [[LAST] * 3] * 2)


def group_gathers() -> None:
    mine, everybody = torch.full((2,), float(RANK)), [[rank] * 2 for rank in range(SIZE)]
    parts = [torch.empty(2) for _ in range(SIZE)]
    dist.all_gather(parts, mine)
    equal(torch.stack(parts), everybody)
    whole = torch.empty(SIZE * 2)
    all_gather_single(whole, mine)
    equal(whole.view(SIZE, 2), everybody)
    collected = [torch.empty(2) for _ in range(SIZE)] if RANK == LAST else None
    dist.gather(mine, collected, dst=LAST)
    if collected is not None:
        equal(torch.stack(collected), everybody)
    if SIZE <= 3:  # many megabytes, so that memory given back too early is gone at once
        strided, large = torch.full((2048, 1024), float(RANK)).t(), torch.empty(SIZE * 1024, 2048)
        all_gather_single(large, strided)
        equal(large[:, 7], [rank for rank in range(SIZE) for _ in range(1024)])
    halves = [torch.empty(2, dtype=torch.bfloat16) for _ in range(SIZE)]
    dist.all_gather(halves, mine.to(torch.bfloat16))
    equal(torch.stack(halves), everybody)


def group_scatters() -> None:
    received = torch.empty(2)
    dist.scatter(received, [torch.full((2,), 3.0 * rank) for rank in range(SIZE)] if RANK == LAST else None, src=LAST)
    equal(received, [3 * RANK] * 2)
    # Rank r offers r + 10 q to rank q; q's sum over r is SIZE * 10 q + 0 + ... + LAST.
    offers = torch.arange(SIZE, dtype=torch.float64)[:, None].expand(SIZE, 2) * 10 + RANK
    for operation, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, SIZE)):
        expected = [(SIZE * 10 * RANK + SIZE * LAST / 2) / divisor] * 2
        part = torch.empty(2, dtype=torch.float64)
        dist.reduce_scatter(part, list(offers), operation)
        equal(part, expected)
        part.zero_()
        reduce_scatter_single(part, offers.contiguous().view(-1), operation)
        equal(part, expected)


def group_all_to_all() -> None:
    # Rank r sends 100 r + q to rank q.
    received = torch.empty(SIZE, dtype=torch.int64)
    dist.all_to_all_single(received, torch.arange(SIZE) + 100 * RANK)
    equal(received, [100 * rank + RANK for rank in range(SIZE)])
    # Rank r sends q + 1 rows to rank q, so that q receives q + 1 rows from each.
    sent = torch.cat([torch.full((q + 1, 2), 100.0 * RANK + q) for q in range(SIZE)])
    unequal = torch.empty((RANK + 1) * SIZE, 2)
    dist.all_to_all_single(unequal, sent, [RANK + 1] * SIZE, [q + 1 for q in range(SIZE)])
    equal(unequal, [[100 * rank + RANK] * 2 for rank in range(SIZE) for _ in range(RANK + 1)])


def group_point_to_point() -> None:
    if SIZE == 1:
        return
    tensor = torch.zeros(3)
    if RANK == 0:
        dist.send(torch.full((3,), 1.0), 1 % SIZE, tag=2)
        dist.recv(tensor, LAST, tag=2)
        equal(tensor, [SIZE] * 3)
    else:
        dist.recv(tensor, RANK - 1, tag=2)
        dist.send(tensor + 1, (RANK + 1) % SIZE, tag=2)


def group_objects() -> None:
    everybody: list[object] = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK, "pad": "x" * RANK})
    assert everybody == [{"rank": rank, "pad": "x" * rank} for rank in range(SIZE)]
    box = [("from", RANK)]
    dist.broadcast_object_list(box, src=LAST)
    assert box == [("from", LAST)]
    dist.barrier()


def group_subgroups() -> None:
    assert dist.get_backend() == BACKEND_NAME
    for members in (list(range(0, SIZE, 2)), [LAST], list(range(SIZE))):
        group = dist.new_group(members)
        if RANK in members:
            tensor = torch.tensor([float(RANK)])
            dist.all_reduce(tensor, group=group)
            equal(tensor, [sum(members)])
            assert dist.get_rank(group) == members.index(RANK)
            dist.destroy_process_group(group)


def group_data_parallel() -> None:
    num_samples, model = 24, _network()
    generator = torch.Generator().manual_seed(4)
    inputs, targets = (torch.randn(num_samples, n, generator=generator, dtype=torch.float64) for n in (5, 1))
    whole = _network()
    nn.functional.mse_loss(whole(inputs), targets).backward()
    with torch.no_grad():  # the others' weights are to be replaced by rank 0's
        for parameter in model.parameters():
            parameter += RANK
    parallel = DistributedDataParallel(model)
    mine = slice(RANK * num_samples // SIZE, (RANK + 1) * num_samples // SIZE)
    nn.functional.mse_loss(parallel(inputs[mine]), targets[mine]).backward()
    for (name, parameter), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert torch.equal(parameter, expected), f"{name} is not rank 0's"
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=1e-14)
        assert parameter.grad.abs().max() > 1e-3


def _network() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double()


# ------------------------------------------------------------------------------------------- the run


def communicator_checks(comm: Communicator, results: Path, name: str) -> dict[str, Check]:
    verbs = (
        check_all_reduce, check_all_gather, check_all_to_all_rows, check_exchange, check_broadcast, check_numpy,
        check_objects, check_together,
    )  # fmt: skip
    named = {f"{name} {verb.__name__.removeprefix('check_')}": lambda verb=verb: verb(comm) for verb in verbs}
    return {**named, f"{name} reducers": lambda: check_reducers(comm, results, name)}


def group_checks() -> dict[str, Check]:
    checks = (
        group_all_reduce, group_half_precision, group_compressed_gradients, group_finished_work, group_refusals,
        group_reduce, group_broadcast, group_gathers, group_scatters,
        group_all_to_all, group_point_to_point, group_objects, group_subgroups, group_data_parallel,
    )  # fmt: skip
    return {f"group {check.__name__.removeprefix('group_')}": check for check in checks}


def run(checks: dict[str, Check], results: Path) -> None:
    for name, check in checks.items():
        print(f"{name}, rank {RANK}", file=sys.stderr, flush=True)
        check()
        MPI.COMM_WORLD.Barrier()
        if RANK == 0:
            with (results / "passed.txt").open("a") as file:
                file.write(f"{name}\n")


def main(results: Path) -> None:
    torch.set_num_threads(1)
    mpi = MpiCommunicator(MPI.COMM_WORLD)
    run(communicator_checks(mpi, results, "mpi"), results)
    own = (check_refusals, check_rows_in_rounds, check_half_precision, check_width_on_the_wire, check_node_shared,
           check_shared_memory_room)  # fmt: skip
    run({f"mpi {check.__name__}": lambda check=check: check(mpi) for check in own}, results)
    register_mpi_backend(mpi.mpi_comm)
    dist.init_process_group(BACKEND_NAME, store=dist.HashStore(), rank=RANK, world_size=SIZE, timeout=TIMEOUT)
    assert isinstance(dist.group.WORLD, MpiProcessGroup)
    run(group_checks(), results)
    run(communicator_checks(TorchCommunicator(), results, "mpi4py group"), results)
    dist.destroy_process_group()
    store = open_store_over(mpi, TIMEOUT, is_one_host=True)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=TIMEOUT)
    gloo = TorchCommunicator()
    run(communicator_checks(gloo, results, "gloo"), results)
    run({"gloo no shared memory": lambda: check_no_shared_memory(gloo)}, results)
    gloo.close()
    mpi.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
