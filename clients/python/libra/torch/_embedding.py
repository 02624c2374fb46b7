# SPDX-License-Identifier: Apache-2.0
"""Embeddings whose rows live in the parameter server."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np
import torch
from torch.nn import functional

from .._session import Session


class _Remote(torch.nn.Module):
    """A table of rows, float32[num_embeddings, dim of the session's job], in the parameter server.

    ``forward`` pulls the rows of its batch, each once; the backward pass pushes their gradients, which the server's optimiser applies to the rows:
    these are not parameters of the module, nor in its ``state_dict`` (the server's checkpoint has them). Row i has key ``first_key + i``, which
    keeps the tables of a job apart. The session must outlive the module.

    A backward pass returns when the gradients are in the session's memory. Gradients that the agent refuses, such as a NaN, are reported by the
    session's next ``flush`` or ``barrier``. In a job whose workers take steps together, call the session's ``barrier`` after each step.
    """

    def __init__(self, num_embeddings: int, session: Session, *, first_key: int = 0) -> None:
        super().__init__()
        if num_embeddings < 1 or first_key < 0 or first_key + num_embeddings > 1 << 64:
            raise ValueError(f"{num_embeddings} rows from key {first_key} on: at least one is wanted, and keys are 0 to 2**64 - 1")
        self.num_embeddings = num_embeddings
        self.embedding_dim = session.dim
        self._session = session
        self._first_key = first_key

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """The rows at index, int64[n], as they are at the server: float32[n, embedding_dim]."""
        return torch.from_numpy(self._session.pull(self._keys(index)))

    def _keys(self, index: torch.Tensor) -> np.ndarray:
        if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:  # would be rounded to other rows
            raise TypeError(f"index has type {index.dtype}, integers are wanted")
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= self.num_embeddings):
            raise IndexError(f"index {int(index.min())} to {int(index.max())} of {self.num_embeddings} rows")
        return index.cpu().numpy().astype(np.uint64) + np.uint64(self._first_key)

    def _pull(self, index: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """The rows of a batch, which push their gradients, and for each index the place of its row in them."""
        used, place = torch.unique(index, return_inverse=True)
        keys = self._keys(used)
        rows = torch.from_numpy(self._session.pull(keys)).to(index.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(lambda gradient: self._session.push(keys, gradient.detach().cpu().numpy()))
        return rows, place

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Embedding(_Remote):
    __doc__ = "Like :class:`torch.nn.Embedding`, but: " + (_Remote.__doc__ or "")

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """The rows of index, an integer tensor of any shape: float32[*shape, embedding_dim]."""
        rows, place = self._pull(index)
        return functional.embedding(place, rows)


class EmbeddingBag(_Remote):
    __doc__ = "Like :class:`torch.nn.EmbeddingBag`, but: " + (_Remote.__doc__ or "")

    def __init__(self, num_embeddings: int, session: Session, *, mode: str = "mean", first_key: int = 0) -> None:
        super().__init__(num_embeddings, session, first_key=first_key)
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"mode is {mode!r}: it must be sum, mean or max")
        self.mode = mode

    def forward(self, index: torch.Tensor, offsets: Optional[torch.Tensor] = None, per_sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Sums, means or maxima of bags of rows: float32[bags, embedding_dim].

        ``index`` is int64[bags, n], or int64[n] with ``offsets``, int64[bags], the position of each
        bag's first index. ``per_sample_weights``, float32 with the shape of index, scale the rows,
        in mode "sum".
        """
        rows, place = self._pull(index)
        return functional.embedding_bag(place, rows, offsets, mode=self.mode, per_sample_weights=per_sample_weights)
