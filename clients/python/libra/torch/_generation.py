# SPDX-License-Identifier: Apache-2.0
"""The backend of this PyTorch's generation. It comes first: everything else needs a PyTorch that it accepts."""

from __future__ import annotations

import re

_remedy = "libra.torch needs PyTorch 1.13, or 2.6 or later, with gloo (Debian: python3-torch)"
try:
    import torch
except ModuleNotFoundError as e:
    if e.name != "torch":  # it is there, and lacks something itself
        raise
    raise ImportError(f"there is no PyTorch: {_remedy}") from None
_version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
if _version < (1, 13) or (2, 0) <= _version < (2, 6):
    raise ImportError(f"PyTorch {torch.__version__} is too old: {_remedy}")
try:
    import torch.distributed as dist

    _lacks = "" if dist.is_available() and dist.is_gloo_available() else "gloo" if dist.is_available() else "torch.distributed"
except ModuleNotFoundError as e:
    if e.name != "torch.distributed":
        raise
    _lacks = "torch.distributed"
if _lacks:
    raise ImportError(f"PyTorch {torch.__version__} was built without {_lacks}: {_remedy}")
if _version < (2, 0):
    from ._v1 import is_libra, register
else:
    from ._v2 import is_libra, register

__all__ = ["is_libra", "register"]
