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
import os
import signal
import threading
import warnings
import weakref
from datetime import timedelta
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed import Backend, ProcessGroup, ProcessGroupGloo

from ._gloo import all_backends, inherit, settle
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
    weakref.finalize(store, _forget, options.group_id, weakref.ref(group)).atexit = False  # _end does it then
    return group


def _device(store: Any, under: Any, rank: int) -> str:
    """The device for which PyTorch wants a backend. It says so only in the prefix of what the backend stores."""
    key = f"libra {rank}"
    store.set(key, "")
    return next((device for device in ("cuda", "xpu", "mps", "hpu") if under.check([f"{device}//{key}"])), "cpu")  # the prefix ends with one of them


def _forget(name: str, group: "weakref.ref[Group]") -> None:
    """Forgets a group that PyTorch has begun to destroy, once its threads are done."""
    backend = group()
    if backend is not None and _groups.get(name) is backend:
        del _groups[name]
        try:
            settle([backend])
        except KeyboardInterrupt:  # Python would ignore it here: it is sent again when this should have returned
            threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        finally:
            backend.rows = None


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
# were the last to have it, it would need the interpreter's lock to free it.
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
    """Destroys groups that the program has not destroyed, before the interpreter ends. Ctrl-C makes it leave them as they are."""
    del _alone[:2]
    if _groups and dist.is_initialized():
        settle(all_backends())
        dist.destroy_process_group()


def _after_fork() -> None:
    """A forked process has the groups of its parent without their threads."""
    inherit(all_backends() + [alone._get_backend(torch.device("cpu")) for alone in _alone[:1]])
    _alone.clear()


os.register_at_fork(after_in_child=_after_fork)


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
