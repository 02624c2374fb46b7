# SPDX-License-Identifier: Apache-2.0
"""Calls every public collective of torch.distributed on the backend "libra" and on gloo, and compares values and errors.

Each rank of libra run --sync is one process of it. Rank 0 prints a line for each function: what came of its calls.
"""

import faulthandler
import inspect
import re
import sys
import unittest

import torch
import torch.distributed as dist

import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
dist.init_process_group("libra")
gloo, mine = (dist.new_group(backend=name) for name in ("gloo", "libra"))  # PyTorch checks the ranks of both alike
# Where the ranks meet between calls. A barrier of gloo waits for calls that the same group has not put away yet, and raises
# their errors: after one that was refused, some ranks would get its error from the barrier, and the others wait for them.
between = dist.new_group(backend="gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
after, before = (rank + 1) % ranks, (rank - 1) % ranks

# No collectives, but for the last line, which needs several GPUs in a process: they are questions, classes and constants by another name, or make, change and end groups, which torch_group.py, torch_open.py and torch2.py do.
OTHERS = """
    destroy_process_group get_backend get_backend_config get_backend_impl get_default_backend_for_device get_global_rank get_group_rank get_node_local_rank
    get_debug_level get_pg_count get_process_group_ranks get_rank get_world_size init_process_group is_backend_available is_gloo_available is_initialized
    is_mpi_available is_nccl_available is_torchelastic_launched is_ucc_available is_xccl_available new_group new_subgroups new_subgroups_by_enumeration
    record_comm set_timeout shrink_group split_group supports_complex
    all_gather_multigpu all_reduce_multigpu broadcast_multigpu reduce_multigpu reduce_scatter_multigpu
""".split()


def numbers(n=2, dtype=torch.float32, first=0):
    """A tensor that each rank has another of."""
    return (torch.arange(n) + 10 * rank + first).to(dtype)


def waits(work):
    if work is not None:
        work.wait()


CALLS = {}


def calls(*named):
    """Registers calls of a function with these arguments, each another call."""

    def register(function):
        for arguments in named or ({},):
            CALLS.setdefault(function.__name__, []).append((function, arguments))
        return function

    return register


BOTH = {"async_op": False}, {"async_op": True}
SUM, PRODUCT, MIN, MAX, BAND, AVG = (getattr(dist.ReduceOp, name) for name in "SUM PRODUCT MIN MAX BAND AVG".split())
OPS = tuple({"op": op} for op in (SUM, PRODUCT, MIN, MAX))
TYPES = {"dtype": torch.int64, "op": BAND}, {"dtype": torch.float64}
if torch.__version__ >= "2":  # gloo of 1.13 refuses these, and then the next call of the group, or hangs in it
    OPS += {"op": BAND}, {"op": AVG}
    TYPES += {"dtype": torch.complex64}, {"dtype": torch.bfloat16}


@calls(*BOTH, *OPS, *TYPES, {"shape": True})
def all_reduce(group, dtype=torch.float32, shape=False, **named):
    tensor = numbers(dtype=dtype)
    waits(dist.all_reduce(tensor.reshape(1, 2).t() if shape else tensor, group=group, **named))
    return tensor


@calls(*BOTH, *OPS[:4], *TYPES, {"sparse": True})
def all_reduce_coalesced(group, dtype=torch.float32, sparse=False, **named):
    tensors = [numbers(dtype=dtype), numbers(3, dtype)]
    if sparse:
        tensors = [tensor.to_sparse() for tensor in tensors]
    waits(dist.all_reduce_coalesced(tensors, group=group, **named))
    return tensors


@calls(*BOTH, *OPS, *TYPES, {"dst": ranks})
def reduce(group, dtype=torch.float32, dst=ranks - 1, **named):
    tensor = numbers(dtype=dtype)
    waits(dist.reduce(tensor, dst, group=group, **named))
    return tensor if rank == dst else None  # what the others have is not said


@calls(*BOTH, {"src": ranks}, {"dtype": torch.bool})
def broadcast(group, src=ranks - 1, dtype=torch.float32, **named):
    tensor = numbers(dtype=dtype)
    waits(dist.broadcast(tensor, src, group=group, **named))
    return tensor


@calls(*BOTH, {"n": 1}, {"kind": torch.int64})
def all_gather(group, n=2, kind=torch.float32, **named):
    into = [torch.zeros(n, dtype=kind) for _ in range(ranks)]
    waits(dist.all_gather(into, numbers(), group=group, **named))
    return into


@calls(*BOTH, {"n": 3})
def all_gather_into_tensor(group, n=2, **named):
    into = torch.zeros(n * ranks)
    waits(dist.all_gather_into_tensor(into, numbers(), group=group, **named))
    return into


@calls(*BOTH, {"n": 3})
def all_gather_single(group, n=2, **named):
    into = torch.zeros(n * ranks)
    waits(dist.all_gather_single(into, numbers(), group=group, **named))
    return into


@calls(*BOTH)
def all_gather_coalesced(group, **named):
    into = [[torch.zeros(2), torch.zeros(3)] for _ in range(ranks)]
    waits(dist.all_gather_coalesced(into, [numbers(), numbers(3)], group=group, **named))
    return into


@calls({}, {"value": {"a": "text", "rank": rank}})
def all_gather_object(group, value=rank):
    into = [None] * ranks
    dist.all_gather_object(into, value, group=group)
    return into


@calls(*BOTH, {"nowhere": True})
def gather(group, nowhere=False, **named):
    into = None if rank and not nowhere else [torch.zeros(2) for _ in range(ranks)]
    waits(dist.gather(numbers(), into, dst=ranks if nowhere else 0, group=group, **named))
    return into


def _gather_one(function, group, **named):
    into = torch.zeros(2 * ranks) if rank == 0 else None
    waits(function(into, numbers(), dst=0, group=group, **named))
    return into


@calls(*BOTH)
def gather_single(group, **named):
    return _gather_one(dist.gather_single, group, **named)


@calls(*BOTH)
def gather_into_tensor(group, **named):
    return _gather_one(dist.gather_into_tensor, group, **named)


@calls({})
def gather_object(group):
    into = [None] * ranks if rank == 1 else None
    dist.gather_object({"rank": rank}, into, dst=1, group=group)
    return into


@calls(*BOTH, {"n": ranks + 1})
def scatter(group, n=ranks, **named):
    into = torch.zeros(2)
    waits(dist.scatter(into, [numbers(first=i) for i in range(n)] if rank == 1 or n > ranks else None, src=1, group=group, **named))
    return into


@calls({}, {"n": 0})
def scatter_object_list(group, n=1):
    into = [None] * n
    dist.scatter_object_list(into, [f"for {i}" for i in range(ranks)] if rank == 0 else None, src=0, group=group)
    return into


@calls({})
def broadcast_object_list(group):
    values = [rank, str(rank)]
    dist.broadcast_object_list(values, src=1, group=group)
    return values


@calls(*BOTH, *OPS, *TYPES, {"n": 1})
def reduce_scatter(group, n=2, dtype=torch.float32, **named):
    into = torch.zeros(n, dtype=dtype)
    waits(dist.reduce_scatter(into, [numbers(dtype=dtype, first=i) for i in range(ranks)], group=group, **named))
    return into


@calls(*BOTH, *OPS, *TYPES)
def reduce_scatter_tensor(group, n=2, dtype=torch.float32, **named):
    into = torch.zeros(n, dtype=dtype)
    waits(dist.reduce_scatter_tensor(into, numbers(2 * ranks, dtype), group=group, **named))
    return into


@calls(*BOTH, *OPS, *TYPES)
def reduce_scatter_single(group, n=2, dtype=torch.float32, **named):
    into = torch.zeros(n, dtype=dtype)
    waits(dist.reduce_scatter_single(into, numbers(2 * ranks, dtype), group=group, **named))
    return into


@calls(*BOTH)
def all_to_all(group, **named):
    into = [torch.zeros(2) for _ in range(ranks)]
    waits(dist.all_to_all(into, [numbers(first=i) for i in range(ranks)], group=group, **named))
    return into


@calls(*BOTH, {"uneven": True}, {"n": 1})
def all_to_all_single(group, n=2, uneven=False, **named):
    if uneven:  # one for the first rank, two for the second, and so on
        named.update(output_split_sizes=[rank + 1] * ranks, input_split_sizes=[i + 1 for i in range(ranks)])
    into = torch.zeros((rank + 1) * ranks if uneven else n * ranks)
    waits(dist.all_to_all_single(into, numbers(ranks * (ranks + 1) // 2 if uneven else 2 * ranks), group=group, **named))
    return into


@calls(*BOTH, {"device_ids": [0]})
def barrier(group, **named):
    waits(dist.barrier(group=group, **named))


@calls({}, {"wait_all_ranks": True})
def monitored_barrier(group, **named):
    dist.monitored_barrier(group=group, **named)


@calls({}, {"tag": 7})
def send(group, tag=0):
    return _pairs(group, tag)


@calls({}, {"tag": 7}, {"any": True})
def recv(group, **named):
    return _pairs(group, **named)


def _pairs(group, tag=0, any=False):
    tensor = numbers()
    if rank % 2 == 0:
        dist.send(tensor, rank + 1, group=group, tag=tag)
        return None
    source = dist.recv(tensor.zero_(), None if any else rank - 1, group=group, tag=tag)
    return source, tensor


@calls({})
def send_object_list(group):
    return _objects(group)


@calls({})
def recv_object_list(group):
    return _objects(group)


def _objects(group):
    values = [{"rank": rank}, None]
    if rank % 2 == 0:
        dist.send_object_list(values, dst=rank + 1, group=group)
        return values
    return dist.recv_object_list(values, src=rank - 1, group=group), values


@calls({}, {"dst": ranks})
def isend(group, dst=after):
    return _ring(group, dst)


@calls({}, {"src": ranks})
def irecv(group, src=before):
    return _ring(group, after, src)


def _ring(group, dst, src=before):
    into = torch.zeros(2)
    work = dist.irecv(into, src, group=group) if dst < ranks else None
    waits(dist.isend(numbers(), dst, group=group))
    waits(work)
    return into


@calls({})
def batch_isend_irecv(group):
    into = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, numbers(), after, group), dist.P2POp(dist.irecv, into, before, group)]):
        work.wait()
    return into


def plain(value):
    """What can be compared: tensors as lists."""
    if isinstance(value, torch.Tensor):
        value = value.to_dense() if value.is_sparse else value
        return str(value.dtype), value.tolist()
    return type(value)(plain(v) for v in value) if isinstance(value, (list, tuple)) else value


def outcome(function, group, arguments):
    """What came of a call: its value, or the type and the text of its error."""
    try:
        return "value", plain(function(group, **arguments))
    except Exception as e:
        text = str(e).replace(dist.get_backend(group), "gloo")
        return type(e).__name__, re.sub(r"<\S+ object at 0x[0-9a-f]+>|\d\d:\d\d:\d\d\.\d+|\[\S+:\d+\]|C\+\+ CapturedTraceback.*|Exception raised from.*", "", text, flags=re.DOTALL)


#: Up to 2.6 at least PyTorch asks for gloo by name before it calls the group.
REFUSED = {"monitored_barrier": "monitored_barrier is only implemented for GLOO backend."}


class Collectives(unittest.TestCase):
    maxDiff = None

    def test_all_are_called(self):
        """A collective that a later PyTorch has is missing here, and in docs/python.md."""
        public = {name for name in dist.distributed_c10d.__all__ if inspect.isfunction(getattr(dist, name, None))}
        self.assertEqual(public - set(CALLS) - set(OTHERS), set())

    def test_collectives(self):
        for name in sorted(CALLS, key=lambda name: (name != "barrier", name)):  # barriers come before refused calls, see above
            if not hasattr(dist, name):
                continue
            said = []
            for function, arguments in CALLS[name]:
                with self.subTest(name=name, **{k: str(v) for k, v in arguments.items()}):
                    want = outcome(function, gloo, arguments)
                    got = outcome(function, mine, arguments)
                    dist.barrier(between)
                    if got[1] is None or got[1] != REFUSED.get(name):
                        self.assertEqual(got, want)
                    said.append(got)
            if rank == 0:
                refused = sum(what != "value" for what, _ in said)
                what = f"{len(said)} calls as gloo" + (f", {refused} of them refused" if refused else "")
                print(f"{name}: " + (f"refused by PyTorch for all but gloo: {REFUSED[name]}" if name in REFUSED and said[0][0] != "value" else what))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
