# SPDX-License-Identifier: Apache-2.0
"""Groups of tests that begin and end them again and again."""

import torch
import torch.distributed as dist


def end():
    """Destroys all groups. Those of gloo alone may hang in PyTorch 2.6 like those of Libra would without the same care."""
    if not torch.__version__.startswith("1."):
        from libra.torch import _v2

        _v2.settle_all()
    dist.destroy_process_group()
