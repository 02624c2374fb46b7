# SPDX-License-Identifier: Apache-2.0
"""A test of ranks that end while others want sums: torch_ends.py FOLDER HOW. The last rank ends in its third step. Then all are started anew.

Each of the ranks of libra run --sync is a child of one process of it, as with torchrun. libra run would end them all when one fails.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]

if len(sys.argv) == 3:
    for start in "first", "second":
        (folder / start).mkdir(exist_ok=True)
        status = subprocess.call([sys.executable, __file__, str(folder / start), how, start])
        if status != (-signal.SIGKILL if how == "killed" and start == "first" and rank == ranks - 1 else 0):
            sys.exit(f"rank {rank} ended with {status} after its {start} start")
        (folder / start / f"{rank}").touch()
        while len(list((folder / start).iterdir())) < ranks:
            time.sleep(0.05)
    sys.exit()
first = sys.argv[3] == "first"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import libra.torch  # noqa: E402

dist.init_process_group("libra")  # with PyTorch's timeout of half an hour, which nobody waits for
for step in range(3):
    tensor = torch.sparse_coo_tensor([[3]], [[1.0, 2.0]], (8, 2))
    if first and step == 2 and rank == ranks - 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        break
    try:
        dist.all_reduce(tensor)
        assert tensor.to_dense()[3].tolist() == [ranks, 2 * ranks], tensor
        assert step < 2 or not first
    except libra.PartyGone as e:
        assert first and step == 2 and e.name == "PARTY_GONE", (step, e)
        print(f"told: {e}\n", end="", flush=True)
        while len(list(folder.iterdir())) < ranks - 1 - rank:  # rank 0 keeps the store: it is the last to end
            time.sleep(0.05)
if not first:
    print("added\n", end="", flush=True)
