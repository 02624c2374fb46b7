# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of a DistributedDataParallel through Libra, whatever its backend."""

# Annotations are no texts here: DistributedDataParallel compares a hook's with its own classes.
import weakref
from typing import Any, Optional

import torch
import torch.distributed as dist

from ._compat import finished
from ._group import Group
from ._rows import Rows, connect

# What groups of other backends have opened, as long as they live.
_rows: "weakref.WeakKeyDictionary[Any, Rows]" = weakref.WeakKeyDictionary()


def sparse_hook(group: Optional[Any], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DistributedDataParallel that averages sparse gradients through Libra, and dense ones as the group does it.

    ``model.register_comm_hook(None, sparse_hook)``, or with the group of all ranks in place of None. The group has to
    gather tensors of the CPU. Raises what an all-reduce of the backend "libra" raises.
    """
    group = group if group is not None else dist.group.WORLD
    tensor = bucket.buffer().div_(group.size())
    if tensor.is_sparse and not isinstance(group, Group):
        if group not in _rows:
            _rows[group] = connect(group, dist.distributed_c10d.default_pg_timeout.total_seconds())
        sums = _rows[group].all_reduce(tensor)
        if sums is not None:
            return finished(tensor.copy_(sums))
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda future: future.value()[0])
