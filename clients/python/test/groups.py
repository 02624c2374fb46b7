# SPDX-License-Identifier: Apache-2.0
"""Groups of tests that begin and end them again and again."""

import torch
import torch.distributed as dist


def end():
    """Destroys all groups. PyTorch 2.6 may wait for ever in it for the threads of gloo, but for these references: see examples/training.py."""
    world = getattr(dist.distributed_c10d, "_world", None)  # of PyTorch 2
    backends = [group._get_backend(torch.device("cpu")) for group in world.pg_map] if world else []
    dist.destroy_process_group()
    del backends
