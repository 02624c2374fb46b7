# SPDX-License-Identifier: Apache-2.0
"""The backend of this PyTorch's generation. It comes first: everything else needs a PyTorch that it accepts."""

from __future__ import annotations

import torch
import torch.distributed as dist

_version = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
_remedy = "libra.torch needs PyTorch 1.13, or 2.6 or later, with gloo (Debian: python3-torch)"
if _version < (1, 13) or (2, 0) <= _version < (2, 6):
    raise ImportError(f"PyTorch {torch.__version__} is too old: {_remedy}")
if not dist.is_available() or not dist.is_gloo_available():
    raise ImportError(f"PyTorch {torch.__version__} was built without {'gloo' if dist.is_available() else 'torch.distributed'}: {_remedy}")
if _version < (2, 0):
    from ._v1 import is_libra, register
else:
    from ._v2 import is_libra, register

__all__ = ["is_libra", "register"]
