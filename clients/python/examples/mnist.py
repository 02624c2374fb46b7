# SPDX-License-Identifier: Apache-2.0
"""Trains the digits of MNIST with several hooks of DistributedDataParallel, in turns, and times how long gradients take.

Run it as the ranks of torchrun. The data are IDX files, gzipped or not: of MNIST's test set, the first 8,000 are enough
to train on, and the rest to test. Rank 0 prints a table: the time that gradients take, in which none are computed, the
CPU time of rank 0 in it, which other programs on a busy machine hardly change, what a rank's host sends in it, and the
share of digits that are recognised at the end.
"""
import argparse
import hashlib
import json
import math
import os
import statistics
import time

import torch
import torch.distributed as dist
from files import idx
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from training import agree, leave

from libra.torch import Codec, codec_hook

HOOKS = "none fp16 codec:10 codec:8 codec:6 powersgd:1 powersgd:2 powersgd:4"


def of(name):
    """A hook and its state, by name: codec:BOUND, codec:BOUND:SCALE, powersgd:RANK, and two without numbers."""
    kind, *numbers = name.split(":")
    numbers = [int(n) for n in numbers]
    if kind == "codec":
        return Codec(numbers[0], scale=numbers[1] if numbers[1:] else None), codec_hook
    if kind == "powersgd":
        return PowerSGDState(None, matrix_approximation_rank=numbers[0], start_powerSGD_iter=2), powerSGD_hook
    return None, {"none": allreduce_hook, "fp16": fp16_compress_hook}[kind]


def sent():
    """Bytes that all interfaces of this host, or network namespace, have sent; NaN where /proc is not mounted."""
    if not os.path.exists("/proc/self/net/dev"):
        return math.nan
    with open("/proc/self/net/dev") as file:
        return sum(int(line.split(":")[1].split()[8]) for line in file.readlines()[2:])


class Digits(torch.nn.Sequential):
    """Tells digits apart. Called with gradients, it returns what has these, at almost no cost, which lets their exchange be timed alone."""

    def forward(self, given):
        if isinstance(given, torch.Tensor):
            return super().forward(given)
        return sum((p * gradient).sum() for p, gradient in zip(self.parameters(), given))


class Training:
    """A model that is trained with one of the hooks."""

    def __init__(self, name, seed, rate):
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(784, 500), torch.nn.ReLU(), torch.nn.Linear(500, 500), torch.nn.ReLU(), torch.nn.Linear(500, 10)]
        self.name, self.model, self.times, self.cpu, self.bytes, self.accuracy = name, Digits(*layers), [], [], 0, []
        self.parallel = DistributedDataParallel(self.model)
        self.parallel.register_comm_hook(*of(name))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def train(self, images, labels, batches):
        for rows in batches:
            gradients = torch.autograd.grad(cross_entropy(self.model(images[rows]), labels[rows]), list(self.model.parameters()))
            self.optimizer.zero_grad()
            loss = self.parallel(gradients)
            dist.barrier()
            before, begun, cpu = sent(), time.perf_counter(), time.process_time()
            loss.backward()
            self.times.append(time.perf_counter() - begun)
            self.cpu.append(time.process_time() - cpu)
            self.bytes += sent() - before
            self.optimizer.step()

    def test(self, images, labels):
        with torch.no_grad():
            self.accuracy.append(round((self.model(images).argmax(1) == labels).float().mean().item(), 4))

    def weights(self):
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).numpy().tobytes()


def load(options):
    """Images and their labels."""
    images, labels = idx(options.images, 28, 28), idx(options.labels)
    if len(images) != len(labels):
        raise ValueError(f"{options.images} has {len(images)} images, {options.labels} {len(labels)} labels: give files of the same data set")
    if len(images) <= options.train:
        raise ValueError(f"{options.images} has {len(images)} images, and some are to test with: give a smaller --train than {options.train}")
    if labels.max() > 9:
        raise ValueError(f"{options.labels} has labels up to {labels.max()}: give those of digits, 0 to 9")
    return images, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="IDX file of images")
    parser.add_argument("--labels", required=True, help="IDX file of their labels")
    parser.add_argument("--train", type=int, default=8000, help="images to train on (%(default)s)")
    parser.add_argument("--test", type=int, default=2000, help="images after those, to test with, at most (%(default)s)")
    parser.add_argument("--hooks", default=HOOKS, help="of each, a model is trained (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=25, help="images of a step, of each rank (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each hook")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    images, labels = agree(lambda: load(options))
    images, labels = images.flatten(1).float() / 255, labels.long()
    trainings = [Training(name, options.seed, options.rate) for name in options.hooks.split()]
    for epoch in range(options.epochs):
        rows = torch.randperm(options.train, generator=torch.Generator().manual_seed(options.seed + epoch))
        batches = rows[: options.train // ranks * ranks].reshape(ranks, -1)[rank].split(options.batch)
        for training in trainings if epoch % 2 == 0 else trainings[::-1]:
            training.train(images, labels, batches)
            if rank == 0:
                test = slice(options.train, options.train + options.test)
                training.test(images[test], labels[test])

    lines = []
    for t in trainings:
        weights = [None] * ranks
        dist.all_gather_object(weights, hashlib.sha256(t.weights()).hexdigest())
        times, cpu = (sorted(x[2:] or x) for x in (t.times, t.cpu))  # in the first, buckets are rebuilt
        middle, p90 = statistics.median(times), times[len(times) * 9 // 10]
        line = {"hook": t.name, "exchange_ms": round(1000 * middle, 2), "p90_ms": round(1000 * p90, 2), "cpu_ms": round(1000 * statistics.median(cpu), 2)}
        megabytes = None if math.isnan(t.bytes) else round(t.bytes / len(t.times) / 1e6, 3)
        line.update(mb_step=megabytes, accuracy=t.accuracy, replicas_equal=all(w == weights[0] for w in weights))
        lines.append(line)
    if rank == 0:
        print(*map(json.dumps, lines) if options.json else table(lines), sep="\n", flush=True)
    leave()


def table(lines):
    yield f"{'hook':12} {'exchange':>9} {'p90':>9} {'CPU':>8} {'of first':>9} {'sent':>9}  {'accuracy':8}  replicas"
    for line in lines:
        part = line["exchange_ms"] / lines[0]["exchange_ms"]
        equal = "equal" if line["replicas_equal"] else "differ"
        yield f"{line['hook']:12} {line['exchange_ms']:6.1f} ms {line['p90_ms']:6.1f} ms {line['cpu_ms']:5.1f} ms {part:9.2f} {line['mb_step'] or math.nan:6.3f} MB  {line['accuracy'][-1]:8.4f}  {equal}"


if __name__ == "__main__":
    main()
