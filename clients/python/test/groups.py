# SPDX-License-Identifier: Apache-2.0
"""Groups of tests that begin and end them again and again."""

import torch
import torch.distributed as dist


def end():
    """Destroys all groups. PyTorch 2.6 may hang when it destroys one of gloo alone, whose threads Libra does not wait for."""
    if not torch.__version__.startswith("1."):
        from libra.torch._gloo import all_backends, settle

        settle(all_backends())
    dist.destroy_process_group()
