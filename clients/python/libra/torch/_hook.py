# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of a DistributedDataParallel through Libra, whatever its backend."""

# No "from __future__ import annotations" here: DistributedDataParallel compares a hook's annotations with its own classes.
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist

from ._generation import is_libra
from ._rows import Rows, connect
from ._tensors import finished

# The time that an all-reduce may take, in seconds: that of the gloo groups here.
_TIMEOUT = float(dist.distributed_c10d.default_pg_timeout.total_seconds())

# For each group that has used the hook a gloo group with the same ranks, and the Rows of that. It ends with destroy_process_group;
# of the model's own group, DistributedDataParallel keeps references in PyTorch 2.
_opened: "weakref.WeakKeyDictionary[Any, weakref.ref[Any]]" = weakref.WeakKeyDictionary()
_rows: "weakref.WeakKeyDictionary[Any, Rows]" = weakref.WeakKeyDictionary()


def sparse_hook(group: Optional[Any], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DistributedDataParallel that averages sparse gradients through Libra, and dense ones through the group itself.

    ``model.register_comm_hook(None, sparse_hook)``; in place of None, another group of all ranks, if
    the model has one. Raises what an all-reduce of the backend "libra" raises, and the reason if a
    rank cannot reach its agent.
    """
    group = group if group is not None else dist.group.WORLD
    tensor = bucket.buffer().div_(group.size())
    if tensor.is_sparse and not is_libra(group):
        gloo = _opened[group]() if group in _opened else None
        if gloo is None:
            if group.size() != dist.get_world_size():
                raise ValueError(f"the model's group has {group.size()} ranks of {dist.get_world_size()}: sparse_hook needs one of all ranks")
            gloo = dist.new_group(backend="gloo")
            _rows[gloo] = connect(gloo, _TIMEOUT)
            _opened[group] = weakref.ref(gloo)
        sums = _rows[gloo].all_reduce(gloo, _TIMEOUT, tensor)
        if sums is not None:
            return finished(tensor.copy_(sums))
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda future: future.value()[0])
