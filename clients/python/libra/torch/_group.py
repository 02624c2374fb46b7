# SPDX-License-Identifier: Apache-2.0
"""The backend "libra" of torch.distributed."""

from __future__ import annotations

import atexit
import os
import weakref
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch
from torch.distributed import AllreduceOptions, ProcessGroupGloo

from ._compat import COLLECTIVES, ProcessGroup, done, operation
from ._rows import Rows, connect


class Group(ProcessGroup):  # type: ignore[misc, valid-type]
    """A process group that adds sparse tensors through Libra, and does everything else through gloo.

    Subgroups do everything through gloo.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
        _groups.add(self)
        self._rows: Optional[Rows] = None
        if size == int(os.environ.get("WORLD_SIZE", size)):
            self._rows = connect(self._gloo, timeout.total_seconds())

    def allreduce(self, tensors: List[torch.Tensor], options: Any = None) -> Any:
        """Sums the ranks' tensors in place. For a sparse tensor the returned Work is already complete."""
        options = options or AllreduceOptions()
        if self._rows is not None and len(tensors) == 1 and tensors[0].is_sparse:
            with torch.inference_mode(tensors[0].is_inference()):  # sums must be inference tensors exactly if the tensor is: assigning data copies that property
                sums = self._rows.all_reduce(self._gloo, tensors[0], operation(options.reduceOp))
            if sums is not None:
                if tensors[0].device == sums.device:
                    tensors[0].zero_()  # unlike assigning data, this shows autograd that the tensor changes
                    tensors[0].data = sums  # copy_ would copy them
                else:
                    tensors[0].copy_(sums)
                return done(tensors)
        return self._gloo.allreduce(tensors, options)

    def getBackendName(self) -> str:
        """For PyTorch."""
        return "libra"


def _by_gloo(name: str) -> Callable[..., Any]:
    def method(self: Group, *arguments: Any, **named: Any) -> Any:
        return getattr(self._gloo, name)(*arguments, **named)

    return method


for _name in COLLECTIVES:
    setattr(Group, _name, _by_gloo(_name))


# Groups that the program has not destroyed.
_groups: "weakref.WeakSet[Group]" = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Ends gloo's threads. One that frees a tensor while the interpreter ends would abort the process (PyTorch's pull request 179291)."""
    for group in _groups:
        del group._gloo


def create(store: Any, rank: int, size: int, timeout: timedelta) -> Group:
    """What :func:`torch.distributed.init_process_group` calls for ``"libra"``."""
    return Group(store, rank, size, timeout)
