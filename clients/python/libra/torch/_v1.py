# SPDX-License-Identifier: Apache-2.0
"""The backend "libra" in PyTorch 1.13, where a backend is a whole process group."""

from __future__ import annotations

import atexit
import os
import weakref
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, Backend, ProcessGroup, ProcessGroupGloo, ReduceOp

from ._gloo import inherit
from ._rows import Rows, connect
from ._tensors import assign, done

#: What a group delegates to gloo: everything that :mod:`torch.distributed` and DistributedDataParallel call on a group, except ``allreduce``.
_COLLECTIVES = (
    "_allgather_base",
    "_get_sequence_number_for_group",
    "_reduce_scatter_base",
    "_set_sequence_number_for_group",
    "allgather",
    "allgather_coalesced",
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
    "scatter",
    "send",
)


class Group(ProcessGroup):  # type: ignore[misc, valid-type]
    """A process group that adds sparse tensors through Libra, and does everything else through gloo.

    Subgroups do everything through gloo.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo, self._timeout = ProcessGroupGloo(store, rank, size, timeout=timeout), timeout.total_seconds()
        _groups.add(self)
        self._rows: Optional[Rows] = None
        if not dist.is_initialized() or size == dist.get_world_size():
            self._rows = connect(self._gloo, self._timeout)

    def allreduce(self, tensors: List[torch.Tensor], options: Any = None) -> Any:
        """Sums the ranks' tensors in place. For a sparse tensor the returned Work is already complete."""
        options = options or AllreduceOptions()
        if self._rows is not None and len(tensors) == 1 and tensors[0].is_sparse:
            with torch.inference_mode(tensors[0].is_inference()):  # sums must be inference tensors exactly if the tensor is: assigning data copies that property
                sums = self._rows.all_reduce(self._gloo, self._timeout, tensors[0], _operation(options.reduceOp))
            if sums is not None:
                assign(tensors[0], sums)
                return done(tensors)
        return self._gloo.allreduce(tensors, options)

    def getBackendName(self) -> str:
        """For PyTorch."""
        return "libra"


def _by_gloo(name: str) -> Callable[..., Any]:
    def method(self: Group, *arguments: Any, **named: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **named)

    return method


for _name in _COLLECTIVES:
    setattr(Group, _name, _by_gloo(_name))


def _operation(op: Any) -> str:
    """The name of a ReduceOp: options hold an object without one."""
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next((name for name in names if op == getattr(ReduceOp, name)), "another operation")


# Groups that the program has not destroyed.
_groups: "weakref.WeakSet[Group]" = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Ends gloo's threads. One that frees a tensor while the interpreter ends would abort the process (PyTorch's pull request 179291)."""
    for group in _groups:
        del group._gloo


os.register_at_fork(after_in_child=lambda: inherit([group._gloo for group in _groups]))


def is_libra(group: Any) -> bool:
    """Whether the all-reduces of a group's sparse tensors are Libra's business."""
    return isinstance(group, Group)


#: What PyTorch 2 takes: a backend for each device. Without these names, PyTorch 1.13 calls them invalid and names no remedy.
_OF_DEVICES = "cpu:libra", "cuda:libra", "cpu:libra,cuda:nccl", "cuda:nccl,cpu:libra"


def _refuse(*_: Any) -> None:
    raise ValueError(f'PyTorch {torch.__version__} has one backend for all devices: give "libra", or take PyTorch 2.6 or later')


def register() -> None:
    """Makes the backend known to PyTorch."""
    if not hasattr(Backend, "LIBRA"):  # the module was loaded before
        Backend.register_backend("libra", Group)
        for name in _OF_DEVICES:
            Backend.register_backend(name, _refuse)
