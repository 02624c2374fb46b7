# SPDX-License-Identifier: Apache-2.0
"""Tests of what PyTorch 2 builds upon groups, on the backend "libra". Each of the ranks of libra run --sync is one process of them."""

import datetime
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from groups import end
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard

import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store, _, _ = next(dist.rendezvous("env://"))
begun = 0


def begin(backend):
    global begun
    begun += 1
    dist.init_process_group(backend, store=dist.PrefixStore(str(begun), store), rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=2))


def sparse(index, values):
    return torch.sparse_coo_tensor([index], values, (8, 2), check_invariants=True)


def pushes():
    """What this rank has pushed."""
    (rows,) = libra.torch._rows._connected.values()
    return rows._session.statistics().pushes_accepted


class PyTorch2(unittest.TestCase):
    def setUp(self):
        begin("libra")

    def tearDown(self):
        if dist.is_initialized():
            end()

    def sums(self, group=None, through_libra=True):
        before = pushes()
        tensor = sparse([1], [[1.0, rank]])
        dist.all_reduce(tensor, group=group)
        self.assertEqual(tensor.to_dense()[1].tolist(), [ranks, ranks * (ranks - 1) / 2])
        self.assertEqual(pushes() > before, through_libra)

    def test_names(self):
        """A group is PyTorch's own, with Libra's backend for the CPU."""
        self.assertIs(type(dist.group.WORLD), dist.ProcessGroup)
        self.assertIsInstance(dist.group.WORLD._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
        self.assertEqual((dist.get_backend(), dist.get_backend_config()), ("libra", "cpu:libra"))
        self.sums()

    def test_again(self):
        """A group that is destroyed leaves no session, and the next one of the same name is not taken for it."""
        self.sums()
        dist.destroy_process_group()
        gc.collect()
        self.assertEqual((libra.torch._v2._groups, len(libra.torch._rows._connected)), ({}, 0))
        begin("gloo")
        tensor = sparse([1], [[1.0, 1.0]])
        dist.all_reduce(tensor)
        self.assertEqual(tensor.to_dense()[1].tolist(), [ranks, ranks])
        self.assertEqual(len(libra.torch._rows._connected), 0)
        end()
        begin("libra")
        gc.collect()
        self.sums()

    def test_devices(self):
        """A backend for each device. Where it has no NCCL, PyTorch says so, as of any other."""
        dist.destroy_process_group()
        begin("cpu:libra")
        self.assertEqual(dist.get_backend_config(), "cpu:libra")
        self.sums()
        dist.destroy_process_group()
        for backend in "cpu:libra,cuda:gloo", "cuda:gloo,cpu:libra":
            begin(backend)
            self.assertEqual(dist.get_backend_config(), backend)
            self.assertIsInstance(dist.group.WORLD._get_backend(torch.device("cpu")), libra.torch._v2.Group)
            self.assertNotIsInstance(dist.group.WORLD._get_backend(torch.device("cuda")), libra.torch._v2.Group)
            self.sums()
            dist.destroy_process_group()
        if not dist.is_nccl_available():
            with self.assertRaisesRegex(RuntimeError, "NCCL"):
                begin("cpu:libra,cuda:nccl")
        with self.assertRaisesRegex(ValueError, 'cuda:libra: the backend "libra" is one for the CPU: give "libra", or "cpu:libra,cuda:nccl"'):
            begin("cuda:libra")
        gc.collect()
        self.assertEqual(libra.torch._v2._groups, {})

    def test_groups(self):
        """Groups of all ranks go through Libra; subgroups, and groups of another backend, do not."""
        self.sums(dist.new_group())
        self.sums(dist.new_group(backend="gloo"), through_libra=False)
        before = pushes()
        group, _ = dist.new_subgroups(ranks // 2)
        dist.all_reduce(tensor := sparse([1], [[1.0, 1.0]]), group=group)
        self.assertEqual((tensor.to_dense()[1].tolist(), pushes()), ([ranks / 2] * 2, before))
        errors = []
        for parent in None, dist.new_group(backend="gloo"):
            with self.assertRaises(RuntimeError) as failed:  # it needs a device
                dist.split_group(parent, [list(range(ranks // 2)), list(range(ranks // 2, ranks))])
            errors.append(str(failed.exception))
        self.assertEqual(errors[0], errors[1])

    def test_mesh(self):
        mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards"))
        self.assertEqual(dist.get_backend(mesh.get_group("shards")), "libra")
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=mesh.get_group("shards"))
        first = rank // (ranks // 2) * (ranks // 2)
        self.assertEqual(tensor.item(), sum(range(first, first + ranks // 2)))
        self.sums()

    def test_functional(self):
        group = dist.group.WORLD
        self.assertEqual(functional.all_reduce(torch.tensor([1.0 + rank]), "sum", group).tolist(), [ranks * (ranks + 1) / 2])
        self.assertEqual(functional.all_gather_tensor(torch.tensor([rank]), 0, group).tolist(), list(range(ranks)))
        self.assertEqual(functional.reduce_scatter_tensor(torch.arange(ranks), "sum", 0, group).tolist(), [rank * ranks])
        compiled = torch.compile(lambda tensor: functional.all_reduce(tensor * 2, "sum", group) + 1, backend="eager", fullgraph=True)
        self.assertEqual(compiled(torch.ones(2)).tolist(), [2 * ranks + 1] * 2)

    def test_fully_shard(self):
        """FSDP2 trains a model's dense part to the weights that it reaches on gloo."""

        def train(mesh):
            torch.manual_seed(3)
            model = fully_shard(torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Linear(4, 1)), mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                optimizer.zero_grad()
                model(torch.full((2, 6), float(rank + step))).square().mean().backward()
                optimizer.step()
            return [parameter.full_tensor().tolist() for parameter in model.parameters()]

        def outcome(mesh):
            try:
                return train(mesh)
            except AttributeError as e:  # of PyTorch 2.6, which has it for CUDA alone
                return str(e)

        gloo = DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")
        self.assertEqual(outcome(init_device_mesh("cpu", (ranks,))), want := outcome(gloo))
        self.assertTrue(isinstance(want, list) or torch.__version__.startswith("2.6."), want)

    def test_compile(self):
        """A model that is compiled, inside of DistributedDataParallel and around it, gets the gradients that it gets without."""
        index = torch.tensor([[rank, 5]])
        gradients = []
        for how in "plain", "inside", "around":
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.EmbeddingBag(8, 2, sparse=True), torch.nn.Linear(2, 1))
            if how == "inside":
                model[1] = torch.compile(model[1], backend="eager")
            parallel = DistributedDataParallel(model)
            if how == "around":
                parallel = torch.compile(parallel, backend="eager")
            before = pushes()
            parallel(index).sum().backward()
            self.assertGreater(pushes(), before)
            gradients.append([parameter.grad.to_dense().tolist() for parameter in model.parameters()])
        self.assertEqual(gradients[1:], gradients[:1] * 2)

    def test_no_sync(self):
        """Gradients are collected without an all-reduce, and then summed once."""
        model = torch.nn.EmbeddingBag(8, 2, sparse=True, mode="sum")
        parallel = DistributedDataParallel(model)
        before = pushes()
        with parallel.no_sync():
            parallel(torch.tensor([[1, 2]])).sum().backward()
        self.assertEqual(pushes(), before)
        parallel(torch.tensor([[1, 3]])).sum().backward()
        self.assertGreater(pushes(), before)
        self.assertEqual(model.weight.grad.to_dense()[:, 0].tolist(), [0, 2, 1, 1, 0, 0, 0, 0])

    def test_join(self):
        """Ranks with fewer batches than others take part in the others' all-reduces of dense gradients."""
        model = torch.nn.Linear(2, 1)
        parallel = DistributedDataParallel(model)
        with parallel.join():
            for _ in range(1 + rank):
                parallel(torch.ones(1, 2)).sum().backward()
        self.sums()

    def test_default_device(self):
        """Another device on which the program creates tensors changes nothing."""
        dist.destroy_process_group()
        tensor, index, model = sparse([1], [[1.0, rank]]), torch.tensor([[1]]), torch.nn.EmbeddingBag(8, 2, sparse=True)
        with torch.device("meta"):
            begin("libra")
            dist.all_reduce(tensor)
            DistributedDataParallel(model)(index).sum().backward()
        self.assertEqual(tensor.to_dense()[1].tolist(), [ranks, ranks * (ranks - 1) / 2])
        self.assertEqual(model.weight.grad.to_dense()[1].tolist(), [1, 1])

    def test_destroyed_early(self):
        """A group ends although gloo's threads wait for the interpreter, which they need to free tensors to which they hold the last references."""
        for _ in range(5):
            groups = [None, dist.new_group()]
            dist.barrier()
            sys.setswitchinterval(1000)
            try:
                for _ in range(8):
                    for group in groups:
                        dist.all_reduce(torch.ones(1 << 18), group=group, async_op=True)
                dist.destroy_process_group()
            finally:
                sys.setswitchinterval(0.005)
            begin("libra")

    def test_destroyed_before_others(self):
        """A group ends although another rank is late, and a model that has it for longer may still use it, as with gloo."""
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        dist.barrier()
        if rank:
            time.sleep(3)
        for _ in range(4):
            dist.all_reduce(torch.ones(1000), async_op=True)
        dist.destroy_process_group()
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    def test_interrupted(self):
        """Ctrl-C while a group ends is not lost, and nothing waits for the group any more."""
        dist.barrier()
        if rank:
            time.sleep(1)
        dist.all_reduce(torch.ones(1000), async_op=True)
        if rank:
            return
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            dist.destroy_process_group()
            time.sleep(60)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertEqual(len(libra.torch._rows._connected), 0)

    def test_debug(self):
        """PyTorch's own checks of collectives, with which it wraps backends."""
        dist.destroy_process_group()
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        try:
            begin("libra")
            dist.all_reduce(torch.ones(3))
            self.sums()
        finally:
            dist.set_debug_level(dist.DebugLevel.OFF)


if __name__ == "__main__":
    # Verbose: where ranks wait for one another, it shows which test each of them is in.
    unittest.main(argv=sys.argv[:1] + os.environ.get("ONLYTEST", "").split(), verbosity=2, failfast=True)
