# SPDX-License-Identifier: Apache-2.0
"""What differs between versions of PyTorch: all of it is in this file."""

from __future__ import annotations

import inspect
from typing import Any, Callable, List

import torch
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed import Backend, ReduceOp

#: What a group is derived from. Up to 1.13 there is no other class; later ones, which have a class of backends within a group,
#: still take a whole group from a backend's function.
ProcessGroup = torch.distributed.ProcessGroup

#: What a group delegates to gloo: everything that :mod:`torch.distributed` and DistributedDataParallel call on a group, except ``allreduce``.
COLLECTIVES = [
    name
    for name in (
        "_allgather_base",
        "_get_sequence_number_for_group",
        "_reduce_scatter_base",
        "_set_sequence_number_for_group",
        "allgather",
        "allgather_coalesced",
        "allgather_into_tensor_coalesced",
        "allreduce_coalesced",
        "alltoall",
        "alltoall_base",
        "barrier",
        "broadcast",
        "gather",
        "monitored_barrier",
        "recv",
        "recv_anysource",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor_coalesced",
        "scatter",
        "send",
    )
    if hasattr(ProcessGroup, name)
]


def register(name: str, create: Callable[..., Any]) -> None:
    """Registers a backend. ``create(store, rank, size, timeout)`` returns its group."""
    if hasattr(Backend, name.upper()):  # the module was loaded before
        return
    # Since 2.0 a backend names the devices that it supports.
    devices = "devices" in inspect.signature(Backend.register_backend).parameters
    Backend.register_backend(name, create, **({"devices": ["cpu", "cuda"]} if devices else {}))


def operation(op: Any) -> str:
    """The name of a ReduceOp; in 1.13, options hold an object without one."""
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next((name for name in names if op == getattr(ReduceOp, name)), "another operation")


def done(tensors: List[torch.Tensor]) -> Any:
    """A Work that is complete, with these tensors as its result.

    In 1.13 a Work of Python cannot have a future of its own (``get_future`` is not called), which DistributedDataParallel
    wants: the Work is made of the future.
    """
    return _create_work_from_future(finished(tensors))


def coalesced(index: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The sparse tensor of rows whose index, int64[1, n], ascends and is within the shape: this is not checked again.

    The public function looks for the smallest and the largest, in more time than everything else here takes.
    """
    return torch._sparse_coo_tensor_unsafe(index, rows, shape)._coalesced_(True)


def finished(result: Any) -> "torch.futures.Future[Any]":
    """A completed future."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future
