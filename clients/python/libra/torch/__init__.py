# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of PyTorch through Libra.

``import libra.torch`` makes the backend ``"libra"`` known to :mod:`torch.distributed`::

    import torch.distributed as dist
    import libra.torch

    dist.init_process_group("libra")        # in place of "gloo"

All-reduces of sparse tensors then go through the host's agent, everything else through gloo. With
a different backend, :func:`sparse_hook` does the same for the sparse gradients of a
DistributedDataParallel. :func:`codec_hook` shortens the dense gradients of one, with any backend
and without an agent. Rows of :class:`Embedding` and :class:`EmbeddingBag` live in the parameter
server instead of the processes. Needs PyTorch 1.13, or 2.6 or later.
"""

from ._generation import register
from ._codec import Codec, codec_hook
from ._embedding import Embedding, EmbeddingBag
from ._hook import sparse_hook
from ._rows import Mismatch

register()

__all__ = ["Codec", "Embedding", "EmbeddingBag", "Mismatch", "codec_hook", "sparse_hook"]
