# SPDX-License-Identifier: Apache-2.0
"""Installs a wheel into a fresh venv and trains with it: without variables, a compiler or the internet, and as nobody if root runs this.

Arguments: the wheel, and the agent's socket.
"""

import os
import subprocess
import sys
import tempfile

PROGRAM = """
import os, sys
import libra

socket = sys.argv[1]
assert os.path.samefile(os.path.commonpath([libra.__file__, sys.prefix]), sys.prefix), libra.__file__
with open("/proc/self/maps" if os.path.exists("/proc/self/maps") else os.devnull) as file:
    libra.version()
    loaded = {line.split()[-1] for line in file if "libra.so" in line}
assert all(os.path.dirname(os.path.realpath(libra.__file__)) == os.path.dirname(path) for path in loaded), loaded
with libra.Session("clicks", socket=socket, parties=1) as session:
    keys, sums = session.reduce([3, 60], [[1, 2], [3, 4]])
    assert keys.tolist() == [3, 60] and sums.tolist() == [[1, 2], [3, 4]], (keys, sums)
try:
    import torch, torch.distributed as dist
except ImportError:
    print("added", libra.__version__, libra.version())
else:
    os.environ.update(LIBRA_JOB="clicks", LIBRA_AGENT=socket, LOCAL_WORLD_SIZE="1")
    import libra.torch
    dist.init_process_group("libra", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.sparse_coo_tensor([[3, 60]], [[1.0, 2.0], [3.0, 4.0]], (100, 2))
    dist.all_reduce(tensor)
    assert tensor.to_dense()[60].tolist() == [3, 4], tensor
    dist.destroy_process_group()
    print("added", libra.__version__, libra.version(), "with PyTorch", torch.__version__)
"""

wheel, socket = sys.argv[1:]
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.umask(0o077)
with tempfile.TemporaryDirectory() as home:
    python = os.path.join(home, "venv", "bin", "python3")

    def run(*command):
        subprocess.run(command, env={"PATH": home, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"}, cwd=home, check=True)

    run(sys.executable, "-m", "venv", "--system-site-packages", os.path.join(home, "venv"))  # NumPy and PyTorch are the system's
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", wheel)
    run(python, "-c", PROGRAM, socket)
