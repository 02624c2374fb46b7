# SPDX-License-Identifier: Apache-2.0
"""Tests of all-reduces of libra.torch. Each of the ranks of libra run --sync is one process of them."""

import faulthandler
import os
import sys
import threading
import unittest

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
dist.init_process_group("libra")
rank, ranks = dist.get_rank(), dist.get_world_size()


def sparse(index, values, shape, dtype=torch.float32):
    return torch.sparse_coo_tensor([index], torch.tensor(values, dtype=dtype), shape)


def everywhere(value):
    """The values of all ranks."""
    values = [None] * ranks
    dist.all_gather_object(values, value)
    return values


class Touching(Dataset):
    """Its items take part in an all-reduce, which no child of a rank may."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        dist.all_reduce(sparse([index], [[1.0, 1.0]], (8, 2)))


class Group(unittest.TestCase):
    def test_sums(self):
        """Sums are those of gloo, on tensors that are no multiples of the job's rows, and have the same bits on all ranks."""
        random = np.random.default_rng(rank)
        for shape in (100,), (100, 2), (100, 3), (50, 2, 5), (1 << 40, 1):
            index = random.integers(0, 60 if len(shape) < 2 else 40, 50)  # some of them twice
            index = np.unique(index) if len(shape) == 2 else index  # they ascend
            values = torch.from_numpy(random.normal(size=(len(index), *shape[1:])).astype(np.float32))
            tensor = torch.sparse_coo_tensor(index[None], values, shape)
            want = tensor.to(torch.float64)  # goes through gloo
            dist.all_reduce(want)
            work = dist.all_reduce(tensor, async_op=True)
            self.assertTrue(work.wait() and work.is_completed())
            want, got = want.coalesce(), tensor.coalesce()
            self.assertTrue(torch.equal(got.indices(), want.indices()))
            torch.testing.assert_close(got.values(), want.values().to(torch.float32), rtol=1e-5, atol=1e-6)
            bits = got.values().numpy().tobytes() + got.indices().numpy().tobytes()
            self.assertEqual(set(everywhere(bits)), {bits})

    def test_exact(self):
        """Sums do not depend on the order of additions, as sums of float32 do."""
        value = [65536.0, 2.0**-9, -65536.0, 2.0**-9][rank % 4]
        tensor = sparse([7], [[value, 0.0]], (8, 2))
        dist.all_reduce(tensor)
        want = sum([65536.0, 2.0**-9, -65536.0, 2.0**-9][r % 4] for r in range(ranks))
        self.assertEqual(tensor.coalesce().values().tolist(), [[want, 0.0]])
        # What a rank gives twice is added before, as float32.
        tensor = sparse([7, 7], [[65536.0, 1.0], [2.0**-9, 0.0]], (8, 2)) if rank == 0 else sparse([7], [[-65536.0 if rank == 1 else 0.0, 0.0]], (8, 2))
        dist.all_reduce(tensor)
        self.assertEqual(tensor.coalesce().values().tolist(), [[0.0, 1.0]])

    def test_magnitudes(self):
        """Small sums are not rounded before they are added, nor large ones refused; only a sum that has no float32 is, on all ranks."""
        gloo = dist.new_group(backend="gloo")
        for value in 1e-6, 1e-9, 1e-11, 1e-13, 1e-14, 5e-15, 1e-30, 1e-45, 131072.0, 1e30, -5e37:  # times 4 it is exact
            tensor = sparse([1, 2], [[value] * 4, [value, 0.0, 1.0, -value]], (10, 4))
            want = tensor.clone()
            dist.all_reduce(want, group=gloo)
            dist.all_reduce(tensor)
            self.assertEqual(tensor.coalesce().values().tolist(), want.coalesce().values().tolist())
        with self.assertRaises(libra.StepDropped) as failed:
            dist.all_reduce(sparse([1, 4], [[1.0, 1.0], [0.0, 3e38]], (8, 2)))
        self.assertEqual((failed.exception.key, failed.exception.peer, failed.exception.refusal), (4, "server", 7))
        self.assertRegex(str(failed.exception), "a sum in it is too large for a float32, key .*: send smaller numbers, which is row 4 of the tensor$")
        self.test_exact()

    def test_zeros(self):
        tensor = sparse([1, 2], [[1.0 if rank == 0 else -1.0 if rank == 1 else 0.0, 0.0], [1.0, 1.0]], (8, 2))
        dist.all_reduce(tensor)
        self.assertEqual(tensor.coalesce().indices().tolist(), [[2]])
        tensor = sparse([], np.zeros((0, 2)), (8, 2))
        dist.all_reduce(tensor)
        self.assertEqual(tensor._nnz(), 0)

    def test_autograd(self):
        """Autograd notices that a tensor changes, and what it may do with one stays the same, as with gloo."""
        tensor = sparse([1, 2], [[1.0, 1.0], [2.0, 2.0]], (8, 2)).coalesce()
        factor = sparse([1, 2], [[1.0, 1.0], [1.0, 1.0]], (8, 2)).coalesce().requires_grad_()
        product = torch.sparse.sum(tensor * factor)  # its gradient is the tensor
        dist.all_reduce(tensor)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()
        with torch.inference_mode():
            dist.all_reduce(tensor)
            inference = sparse([1], [[1.0, 1.0]], (8, 2))
            dist.all_reduce(inference)
        self.assertFalse(tensor.is_inference() or tensor.values().is_inference())
        self.assertTrue(inference.is_inference())
        for t in tensor, inference:
            self.assertTrue(torch.equal(t.to_dense()[1], torch.full((2,), float(ranks if t is inference else ranks**2))))
        with self.assertRaisesRegex(RuntimeError, "leaf Variable"):
            dist.all_reduce(factor)

    def test_mismatch(self):
        odd = rank == ranks - 1
        for tensor, text in (
            (sparse([1], [[1.0, 2.0]], (10 + odd, 2)), r"rank 0: shape \[10, 2\], .*rank %d: shape \[11, 2\]" % (ranks - 1)),
            (sparse([1], [[1.0] * (2 + odd)], (10, 2 + odd)), r"shape \[10, 2\], .*shape \[10, 3\]"),
            (sparse([1], [[1.0, 2.0]], (10, 2), torch.float64 if odd else torch.float32), r"rank 0: .*torch.float32.*rank %d: .*torch.float64" % (ranks - 1)),
        ):
            with self.assertRaisesRegex(libra.torch.Mismatch, text):
                dist.all_reduce(tensor)
        with self.assertRaisesRegex(libra.torch.Mismatch, r"rank 0: .*, SUM; .*rank %d: .*, (MAX|not SUM)" % (ranks - 1)):  # PyTorch 2 hides its name
            dist.all_reduce(sparse([1], [[1.0, 2.0]], (10, 2)), op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)
        self.test_sums()

    def test_outside(self):
        """An index outside of the shape, which PyTorch lets pass, is told to all ranks; if all have it, gloo takes it or not."""

        def at(index):
            if hasattr(torch, "_sparse_coo_tensor_unsafe"):
                return torch._sparse_coo_tensor_unsafe(torch.tensor([[index]]), torch.ones(1, 2), (8, 2))
            return torch.sparse_coo_tensor([[index]], torch.ones(1, 2), (8, 2), check_invariants=False)

        def outcome(index, group):
            try:
                dist.all_reduce(tensor := at(index), group=group)
                return tensor._indices().tolist(), tensor._values().tolist()  # PyTorch 2.6
            except RuntimeError as e:
                return str(e)

        gloo = dist.new_group(backend="gloo")
        for index in 8, -1, -30:
            with self.assertRaisesRegex(libra.torch.Mismatch, f"rank 0: .*SUM; .*rank {ranks - 1}: .*SUM, with an index {index} outside of the shape$"):
                dist.all_reduce(at(index if rank == ranks - 1 else 1))
            self.assertEqual(outcome(index, None), outcome(index, gloo))
        self.test_exact()

    def test_empty(self):
        """A rank without rows takes part, whatever the layout of its tensor."""
        for layout in 1, 2:
            for first in 0, ranks - 1:
                if rank == first:
                    tensor = torch.sparse_coo_tensor(torch.empty((layout, 0), dtype=torch.int64), torch.empty((0, 2)[: 3 - layout]), (8, 2))
                else:
                    tensor = sparse([1], [[1.0, 2.0]], (8, 2))
                dist.all_reduce(tensor)
                self.assertEqual(tensor.to_dense().tolist()[:2], [[0.0, 0.0], [ranks - 1.0, 2 * (ranks - 1.0)]])
            layout_here = layout if rank == 0 else 3 - layout  # all are empty
            tensor = torch.sparse_coo_tensor(torch.empty((layout_here, 0), dtype=torch.int64), torch.empty((0, 2)[: 3 - layout_here]), (8, 2))
            dist.all_reduce(tensor)
            self.assertEqual(tensor._nnz(), 0)
        # A shape or type of its own is no question of layout, and tensors of other layouts with rows are none of Libra's.
        tensor = torch.sparse_coo_tensor(torch.empty((2, 0), dtype=torch.int64), torch.empty(0), (9, 2)) if rank == 0 else sparse([1], [[1.0, 2.0]], (8, 2))
        with self.assertRaisesRegex(libra.torch.Mismatch, r"rank 0: shape \[9, 2\], 2 of its dimensions sparse"):
            dist.all_reduce(tensor)
        self.test_sums()

    def test_threads(self):
        """Threads take turns, as with gloo."""
        sums = []

        def add():
            for _ in range(5):
                dist.all_reduce(tensor := sparse([1], [[1.0, 1.0]], (8, 2)))
                sums.append(tensor.to_dense()[1].tolist())

        threads = [threading.Thread(target=add) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sums, [[ranks, ranks]] * 15)

    def test_refused(self):
        bad = float("nan") if rank == 1 else 1.0
        for tensor, row, index in (
            (sparse([3], [[1.0, bad]], (8, 2)), 3, 1),
            (sparse([4, 0, 6], [[1.0] * 5, [2.0] * 5, [3.0, 3.0, 3.0, bad, 3.0]], (8, 5)), 6, 13),
        ):
            with self.assertRaises(libra.NotFinite if rank == 1 else libra.StepDropped) as failed:
                dist.all_reduce(tensor)
            self.assertEqual((failed.exception.key, failed.exception.index), (row, index if rank == 1 else None))
            self.assertRegex(str(failed.exception), f"which is row {row} of the tensor" + (f", number {index} of its values$" if rank == 1 else "$"))
        if rank == 1:
            self.assertIn("NaN or infinite", str(failed.exception))
        self.test_exact()

    def test_others(self):
        """What is not for Libra goes through gloo."""
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        self.assertEqual(tensor.tolist(), [ranks - 1.0] * 3)
        gathered = [torch.zeros(2) for _ in range(ranks)]
        dist.all_gather(gathered, torch.full((2,), float(rank)))
        self.assertEqual([t[0].item() for t in gathered], list(range(ranks)))
        dist.broadcast(tensor.fill_(rank), ranks - 1)
        self.assertEqual(tensor[0].item(), ranks - 1)
        dist.reduce(tensor.fill_(1), 0)
        if rank == 0:
            self.assertEqual(tensor[0].item(), ranks)
        if rank == 0:
            dist.send(tensor.fill_(5), 1)
        elif rank == 1:
            dist.recv(tensor, 0)
            self.assertEqual(tensor[0].item(), 5)
        dist.barrier()
        two = dist.new_group([0, 1])
        if rank < 2:
            tensor = sparse([rank], [[1.0, 1.0]], (8, 2))
            dist.all_reduce(tensor, group=two)
            self.assertEqual(tensor.to_dense().sum().item(), 4)
        everyone = dist.new_group()
        dist.all_reduce(tensor := sparse([1], [[1.0, 1.0]], (8, 2)), group=everyone)
        self.assertEqual(tensor.to_dense().sum().item(), 2 * ranks)
        with self.assertRaisesRegex(RuntimeError, "(?i)sum"):  # as gloo's own
            dist.all_reduce(sparse([1], [[1.0, 1.0]], (8, 2)), op=dist.ReduceOp.MAX)

    def test_forked_loader(self):
        """A loader's child that touches the session gets its own error, and the rank goes on."""
        (rows,) = libra.torch._rows._connected.values()
        with rows._turn:  # as another thread's all-reduce has it
            with self.assertRaisesRegex(libra.Forked, "fork"):
                list(DataLoader(Touching(), num_workers=2, multiprocessing_context="fork", timeout=60))
        self.test_exact()

    def test_model(self):
        """A model trains to the same weights on all ranks, and nearly to those of gloo; with the hook it does on gloo, too."""
        want = train(dist.new_group(backend="gloo"))
        for group, hook in (None, None), (None, libra.torch.sparse_hook), (dist.new_group(backend="gloo"), libra.torch.sparse_hook):
            weights = train(group, hook)
            self.assertEqual(len(set(everywhere(weights.tobytes()))), 1)
            np.testing.assert_allclose(weights, want, rtol=1e-5, atol=1e-6)

    def test_codec(self):
        """With the hook that codes dense gradients, sparse ones still go through Libra."""
        model = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 6, sparse=True), torch.nn.Linear(6, 1))
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(codec := libra.torch.Codec(bound=10), libra.torch.codec_hook)
        before = pushes()
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            parallel(torch.tensor([[1, 2 + rank]])).sum().backward()
        self.assertEqual(pushes(), before + 3)
        self.assertGreater(codec.sent_bytes, 0)
        self.assertEqual(model[1].bias.grad.tolist(), [1.0])
        bits = model[0].weight.grad.coalesce().values().numpy().tobytes() + model[1].weight.grad.numpy().tobytes()
        self.assertEqual(set(everywhere(bits)), {bits})

    def test_model_refused(self):
        """A gradient that is refused in a backward pass ends that of all ranks, which go on with another DistributedDataParallel."""
        model = torch.nn.EmbeddingBag(50, 6, sparse=True)
        index = torch.tensor([[1, 2]])
        parallel = DistributedDataParallel(model)
        with self.assertRaises((RuntimeError, libra.NotFinite, libra.StepDropped)) as failed:  # in PyTorch 1 a text alone comes out of it
            (parallel(index).sum() * (float("nan") if rank == 1 else 1)).backward()
        self.assertRegex(f"{type(failed.exception).__name__}: {failed.exception}", "(NotFinite|StepDropped): .*row 1 of the tensor")
        model.zero_grad()
        parallel = DistributedDataParallel(model)
        parallel(index).sum().backward()
        self.assertEqual(model.weight.grad.to_dense()[1].tolist(), [0.5] * 6)


def pushes():
    """What this rank has pushed."""
    (rows,) = libra.torch._rows._connected.values()
    return rows._session.statistics().pushes_accepted


def train(group, hook=None):
    """The weights of a model with sparse and dense gradients after five steps."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(50, 6, sparse=True), torch.nn.Linear(6, 1))
    parallel = DistributedDataParallel(model, process_group=group)
    if hook is not None:
        parallel.register_comm_hook(group, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(rank)
    rows = pushes()
    for _ in range(5):  # from the second on, buckets have other numbers
        optimizer.zero_grad()
        parallel(torch.randint(0, 50, (8, 4), generator=random)).square().mean().backward()
        optimizer.step()
    through_libra = hook is not None or dist.get_backend(parallel.process_group) == "libra"
    assert (pushes() > rows) == through_libra, (pushes(), rows)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
