# SPDX-License-Identifier: Apache-2.0
"""What both generations of the backend do with tensors and their sums."""

from __future__ import annotations

from typing import Any, List

import torch
from torch._C._distributed_c10d import _create_work_from_future

if hasattr(torch, "_sparse_coo_tensor_unsafe"):  # PyTorch 1.13

    def coalesced(index: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The sparse tensor of rows whose index, int64[1, n], ascends and is within the shape: this is not checked again.

        The public function looks for the smallest and the largest, in more time than everything else here takes.
        """
        return torch._sparse_coo_tensor_unsafe(index, rows, shape)._coalesced_(True)

else:

    def coalesced(index: torch.Tensor, rows: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The sparse tensor of rows whose index, int64[1, n], ascends and is within the shape: this is not checked again.

        All are on the CPU, also if the program has another default device.
        """
        return torch.sparse_coo_tensor(index, rows, shape, device="cpu", is_coalesced=True, check_invariants=False)


def assign(tensor: torch.Tensor, sums: torch.Tensor) -> None:
    """Makes sums, of the same shape and coalesced, what the tensor holds."""
    if tensor.device == sums.device:
        tensor.zero_()  # unlike assigning data, this shows autograd that the tensor changes
        tensor.data = sums  # copy_ would copy them
    else:
        tensor.copy_(sums)


def done(tensors: List[torch.Tensor]) -> Any:
    """A Work that is complete, with these tensors as its result.

    DistributedDataParallel wants its future, and in 1.13 a Work of Python cannot have one of its own (``get_future`` is not
    called): the Work is made of the future.
    """
    return _create_work_from_future(finished(tensors))


def finished(result: Any) -> "torch.futures.Future[Any]":
    """A completed future."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return future
