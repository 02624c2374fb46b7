# SPDX-License-Identifier: Apache-2.0
"""The backend "libra" in PyTorch 2: gloo's, in a group that adds sparse tensors another way.

A group of PyTorch 2 has a backend for each device. It hands a collective to PyTorch's dispatcher,
which has an implementation, called kernel, for each kind of tensor. Everything that is not sparse
stays as it is, with gloo's backend or another; replaced are only the kernels of the all-reduce of
sparse tensors. Groups of other backends get the previous kernel from them.

A backend written in Python could not do it: in 2.6 none is possible (its class has no constructor),
and the group gives a sparse tensor of another device to that device's backend.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed import Backend, ProcessGroup, ProcessGroupGloo, distributed_c10d

from ._rows import Rows, connect
from ._tensors import assign, coalesced, done


class Group(ProcessGroupGloo):  # type: ignore[misc, valid-type]
    """The backend of a group, for the CPU. A subgroup's sparse tensors go through gloo, too."""

    def __init__(self, options: Any) -> None:
        super().__init__(options.store, options.group_rank, options.group_size, timeout=options.timeout)
        self.rows: Optional[Rows] = None
        if not dist.is_initialized() or options.group_size == dist.get_world_size():
            self.rows = connect(self, self.timeout())

    def timeout(self) -> float:
        """The time that a collective may take, in seconds."""
        return float(self.options._timeout.total_seconds())


# The groups that are not destroyed, by name. PyTorch itself keeps no Python object of a backend.
_groups: Dict[str, Group] = {}


def _create(options: Any, _: Any) -> Group:
    """What PyTorch calls for a group with the backend ``"libra"``."""
    store = options.store.underlying_store  # PyTorch keeps this object as long as the group
    device = _device(options.store, store, options.group_rank)
    if device != "cpu":
        raise ValueError(f'{device}:libra: the backend "libra" is one for the CPU: give "libra", or "cpu:libra,cuda:nccl"')
    group = _groups[options.group_id] = Group(options)
    weakref.finalize(store, _forget, options.group_id, weakref.ref(group)).atexit = False  # that is for _end
    return group


def _device(store: Any, under: Any, rank: int) -> str:
    """The device for which PyTorch wants a backend. It says so only in the prefix of what the backend stores."""
    key = f"libra {rank}"
    store.set(key, "")
    return next((device for device in ("cuda", "xpu", "mps", "hpu") if under.check([f"{device}//{key}"])), "cpu")  # the prefix ends with one of them


def _forget(name: str, group: "weakref.ref[Group]") -> None:
    """What happens when PyTorch has begun to destroy a group."""
    backend = group()
    if backend is not None and _groups.get(name) is backend:
        del _groups[name]
        _settle(backend)


# What _settle queues last. As it stays, a thread needs no interpreter to let go of it.
_empty = torch.empty(0, device="cpu")


def _settle(gloo: ProcessGroupGloo) -> None:
    """Waits, for at most 2 seconds, until each of gloo's threads has freed what it sent, for which it needs the interpreter.

    PyTorch 2.6 keeps the interpreter while it ends a group, and then waits for these threads for ever (fixed by its pull request
    154976). A thread that needs the interpreter after it has ended aborts the process (pull request 179291).

    Threads take work from one queue. An all-reduce of an empty tensor does not wait for other ranks, and a thread that frees the
    tensor has freed everything from before. It holds the queue's lock until it is done with that: so the last one waits for it.
    """
    freed: List[int] = []  # the thread that freed each empty tensor
    watched: List[Any] = []  # of each, a weak reference
    until = time.monotonic() + 2
    while len(set(freed) - {threading.get_ident()}) < gloo.options._threads and time.monotonic() < until:
        if len(freed) == len(watched):
            empty = torch.empty(0, device="cpu")
            watched.append(weakref.ref(empty, lambda _: freed.append(threading.get_ident())))
            gloo.allreduce([empty])
            del empty
        time.sleep(0.0002)  # with the interpreter free
    gloo.allreduce([_empty])


def settle_all() -> None:
    """Waits for the threads of all groups of gloo, whatever the backend that has them."""
    for group in distributed_c10d._world.pg_map:
        for device in group._device_types:
            backend = group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)  # PyTorch's debugging wraps it
            if isinstance(backend, ProcessGroupGloo):
                _settle(backend)


_OPERATOR = torch.ops.c10d.allreduce_.default
_CPU, _CUDA = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in ("CPU", "CUDA"))


def _all_reduce(tensors: List[torch.Tensor], group: Any, op: Any, *rest: Any) -> Tuple[Any, Any]:
    """The kernel of sparse tensors. ``group`` and ``op`` are objects of the dispatcher."""
    backend = _groups.get(ProcessGroup.unbox(group).group_name)
    if backend is not None and backend.rows is not None and len(tensors) == 1:
        tensor = tensors[0]
        with torch.inference_mode(tensor.is_inference()):  # sums must be inference tensors exactly if the tensor is: assigning data copies that property
            operation = "SUM" if backend.rows.is_forked() or _is_sum(op, rest) else "not SUM"
            sums = backend.rows.all_reduce(backend, backend.timeout(), tensor, operation)
        if sums is not None:
            assign(tensor, sums)
            return tensors, done(tensors).boxed()
    return _OPERATOR.redispatch(_CUDA if tensors[0].is_cuda else _CPU, tensors, group, op, *rest)


# A group of this process alone, as PyTorch and as the dispatcher have it, and a tensor for it. The tensor stays: if gloo's thread
# were the last to have it, it would need the interpreter to free it (see _settle).
_alone: List[Any] = []


def _is_sum(op: Any, rest: Tuple[Any, ...]) -> bool:
    """Whether the operation is a sum. The object does not say so, but gloo refuses sparse tensors in any other, before it adds them."""
    if not _alone:
        store = dist.HashStore()
        group = ProcessGroup(store, 0, 1)
        group._set_default_backend(ProcessGroup.BackendType.GLOO)
        group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, 0, 1, timeout=timedelta(minutes=1)))
        with torch.inference_mode(False):
            empty = coalesced(torch.empty(1, 0, dtype=torch.int64, device="cpu"), torch.empty(0, device="cpu"), torch.Size([1]))
        _alone.extend((group, group.boxed(), empty))
    try:
        _OPERATOR.redispatch(_CPU, [_alone[2]], _alone[1], op, *rest)
    except RuntimeError as e:
        if "ReduceOp.SUM" in str(e):
            return False
        raise
    return True


@atexit.register
def _end() -> None:
    """Ends gloo's threads. One that frees a tensor while the interpreter ends would abort the process (PyTorch's pull request 179291)."""
    del _alone[:2]
    if _groups and dist.is_initialized():
        settle_all()
        dist.destroy_process_group()


def is_libra(group: Any) -> bool:
    """Whether the all-reduces of a group's sparse tensors are Libra's business."""
    return group.group_name in _groups


# The kernels; they are there as long as this.
_library = torch.library.Library("c10d", "IMPL")


def register() -> None:
    """Makes the backend known to PyTorch."""
    if hasattr(Backend, "LIBRA"):  # the module was loaded before
        return
    Backend.register_backend("libra", _create, extended_api=True, devices=["cpu"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for key in ("SparseCPU", "SparseCUDA") if torch.backends.cuda.is_built() else ("SparseCPU",):
            _library.impl("allreduce_", _all_reduce, key)
