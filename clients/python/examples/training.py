# SPDX-License-Identifier: Apache-2.0
"""What the examples ncf.py, lstm.py and deeplight.py share: options, a model for each backend, times, bytes, and the report."""
import argparse
import contextlib
import hashlib
import json
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import libra.torch


def number(text):
    """The type of options that count something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small: give 1 or more")
    return value


def options(description, epochs, batch, rate, accumulator=0.0):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--backend", default="none", help="gloo, libra, or gloo,libra for a model of each in turns; none: one process (%(default)s)")
    parser.add_argument("--epochs", type=number, default=epochs, help="(%(default)s)")
    parser.add_argument("--steps", type=number, default=10**9, help="steps of all epochs together, at most")
    parser.add_argument("--batch", type=number, default=batch, help="rows of a step, of all ranks together (%(default)s)", metavar="N")
    parser.add_argument("--rate", type=float, default=rate, help="learning rate (%(default)s)")
    parser.add_argument("--accumulator", type=float, default=accumulator, help="at which Adagrad's sums of squares begin; at 0, the first steps of a weight are as large as the rate, and amplify rounding (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each backend")
    return parser


def start(parser):
    """Parses the options, and meets the other ranks, which must have the same."""
    given = parser.parse_args()
    names, of = given.backend.split(","), int(os.environ.get("WORLD_SIZE", 1))
    if names not in (["none"], ["gloo"], ["libra"], ["gloo", "libra"], ["libra", "gloo"]):
        parser.error(f"there is no --backend {given.backend}: give none, gloo, libra, or gloo,libra")
    if names == ["none"] and of > 1:
        parser.error(f"each of the {of} processes would train alone: give --backend gloo, libra or gloo,libra")
    if names != ["none"] and "RANK" not in os.environ:
        parser.error(f"--backend {given.backend} needs ranks: start them by libra run or torchrun, or give --backend none")
    if given.batch % of:
        parser.error(f"--batch {given.batch} is no multiple of {of}, the number of ranks: give one that is")
    if not 0 < given.rate < math.inf:
        parser.error(f"--rate {given.rate} is no learning rate: give a number above 0")
    if not 0 <= given.accumulator < math.inf:
        parser.error(f"--accumulator {given.accumulator} is no sum of squares: give 0 or more")
    torch.set_num_threads(1)  # ranks share processors
    if names == ["none"]:  # a group of this process alone
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("libra" if "libra" in names else "gloo")
    agree(lambda: sorted((name, value) for name, value in vars(given).items() if not isinstance(value, str)), "options")
    return given


def leave():
    """Destroys all groups: their threads may abort a process that exits before them. With the backend "gloo", PyTorch 2.6 may hang if these
    threads have not freed what they sent (fixed by its pull request 154976). Where no collective is in progress, the pause is long enough."""
    time.sleep(0.05)
    dist.destroy_process_group()


def gather(mine):
    """What each rank has."""
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, mine)
    return everywhere


def agree(load, what="data"):
    """What load() returns, a sequence. If it raises a ValueError on a rank, or returns something else there, all ranks end with the reason."""
    loaded, error = (), None
    try:
        loaded = load()
    except ValueError as e:
        error = str(e)
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() if isinstance(t, torch.Tensor) else repr(t).encode() for t in loaded)).hexdigest()
    found = gather((error, digest))
    errors = [(i, error) for i, (error, _) in enumerate(found) if error is not None]
    errors = errors or [(i, f"its {what} differ from those of rank 0: give all ranks the same") for i, (_, d) in enumerate(found) if d != found[0][1]]
    if errors:
        leave()
        raise SystemExit(errors[0][1] if len(found) == 1 else "rank {}: {}".format(*errors[0]))
    return loaded


def sent():
    """Bytes that all interfaces of this host, or network namespace, have sent; NaN where /proc is not mounted."""
    if not os.path.exists("/proc/self/net/dev"):
        return math.nan
    with open("/proc/self/net/dev") as file:
        return sum(int(line.split(":")[1].split()[8]) for line in file.readlines()[2:])


class Training:
    """A model with its optimiser, trained with one backend."""

    def __init__(self, name, model, given):
        self.name, self.model, self.seconds, self.bytes = name, model, [], 0
        # Of a table it changes only the rows that have gradients.
        self.optimizer = torch.optim.Adagrad(model.parameters(), lr=given.rate, initial_accumulator_value=given.accumulator)
        if name == "none":
            self.parallel = model
        else:  # gloo beside libra needs a group of its own
            group = dist.new_group(backend="gloo") if name == "gloo" != dist.get_backend() else None
            self.parallel = DistributedDataParallel(model, process_group=group)

    @contextlib.contextmanager
    def step(self):
        """Takes the time of a step, and counts what this host sends in it."""
        dist.barrier()
        before, begun = sent(), time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - begun)
        dist.barrier()
        self.bytes += sent() - before if self.name != "none" else 0


def trainings(given, model):
    """A training with each of the backends. model() makes the model, and all have the same initial weights."""
    made = []
    for name in given.backend.split(","):
        torch.manual_seed(given.seed)
        made.append(Training(name, model(), given))
    return made


def turns(of, batches, most):
    """Each batch for each training, which take turns in being the first, until each has taken as many steps as it may."""
    for batch in batches:
        done = len(of[0].seconds)
        if done >= most:
            return
        yield from ((training, batch) for training in (of if done % 2 == 0 else of[::-1]))


def report(given, of, evaluate):
    """Prints what each training has reached, evaluate(model), a dict, on rank 0. All ranks must have the same weights."""
    for training in of:
        weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in training.model.parameters())).hexdigest()
        hashes = gather(weights)
        if any(h != weights for h in hashes):
            raise SystemExit(f"the weights of the ranks differ after training with {training.name}: {hashes}")
        if dist.get_rank() == 0:
            steps, seconds = len(training.seconds), training.seconds[2:] or training.seconds  # buckets are rebuilt in the first
            with torch.no_grad():
                line = {"backend": training.name, "ranks": dist.get_world_size(), "steps": steps, **evaluate(training.model), "weights": weights[:16]}
            line["step_p50_ms"] = round(1000 * statistics.median(seconds), 2)
            line["sent_mb_step"] = None if math.isnan(training.bytes) else round(training.bytes / steps / 1e6, 4)
            print(json.dumps(line) if given.json else ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in line.items()), flush=True)
    leave()
