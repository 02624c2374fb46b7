# SPDX-License-Identifier: Apache-2.0
"""Tests of libra.torch.codec_hook on gloo, without an agent. Each rank is one process of them; the rank DIES ends before the others at last."""

import contextlib
import copy
import datetime
import faulthandler
import gc
import os
import pickle
import sys
import time
import types
import unittest
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from groups import end
from torch.nn.parallel import DistributedDataParallel

import libra.torch
from libra.torch import Codec, codec_hook

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store, _, _ = next(dist.rendezvous("env://"))
begun = 0


def begin():
    global begun
    begun += 1
    dist.init_process_group("gloo", store=dist.PrefixStore(str(begun), store), rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=2))


def everywhere(value):
    """The values of all ranks."""
    values = [None] * ranks
    dist.all_gather_object(values, value)
    return values


class Given(torch.nn.Module):
    """A model whose parameters get the gradients that it is called with. None leaves one out."""

    def __init__(self, *shapes, dtype=torch.float32):
        super().__init__()
        self.given = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes)

    def forward(self, *gradients):
        return sum((p * torch.as_tensor(g).to(p.dtype)).sum() for p, g in zip(self.given, gradients) if g is not None)


def parallel(model, codec=None, **options):
    model = DistributedDataParallel(model, **options)
    model.register_comm_hook(codec or Codec(), codec_hook)
    return model


def step(model, *gradients):
    """The gradients of a step, the same bits on all ranks."""
    for p in model.parameters():
        p.grad = None
    model(*gradients).backward()
    averages = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    bits = [None if a is None else a.reshape(-1).view(torch.uint8).numpy().tobytes() for a in averages]
    assert everywhere(bits) == [bits] * ranks
    return averages


def kept(codec, model):
    """What this rank has cut of each parameter, and not sent yet."""
    return [torch.from_numpy(codec._cut._of[id(p)][1].copy()).reshape(p.shape) for p in model.parameters()]


def numbers(*shape, seed=0):
    """Multiples of 2**-14 whose sums over ranks and steps are exact, most of them small."""
    random = np.random.default_rng(rank + 10 * seed)
    return torch.from_numpy((random.integers(-1024, 1024, shape) >> random.integers(0, 11, shape)).astype(np.float32)) / 16384


def mean(values):
    """The mean over all ranks, exactly."""
    return sum(everywhere(values.to(torch.float64))) / ranks


class Hook(unittest.TestCase):
    def setUp(self):
        begin()

    def tearDown(self):
        end()

    def refused(self, error, text, model, *gradients):
        """The error comes out of a backward pass as it is, and nothing hangs."""
        with self.assertRaises(error) as failed:
            model(*gradients).backward()
        self.assertRegex(str(failed.exception), text)
        return str(failed.exception)

    def test_arguments(self):
        for bound in 0, 15, -1, "10", 1.5, None, True:
            with self.assertRaisesRegex(ValueError, "^bound is .*: it must be a whole number from 1 to 14$"):
                Codec(bound=bound)
        for scale in -127, 127, "0", 0.5, False:
            with self.assertRaisesRegex(ValueError, "^scale is .*: it must be None or a whole number from -126 to 126$"):
                Codec(scale=scale)
        with self.assertRaisesRegex(ValueError, "^feedback is 1: it must be True or False"):
            Codec(feedback=1)
        for timeout in 3, datetime.timedelta():
            with self.assertRaisesRegex(ValueError, "^timeout is .*: it must be a datetime.timedelta of a millisecond or more"):
                Codec(timeout=timeout)
        self.assertEqual(repr(Codec(np.int64(8), scale=-126)), "Codec(bound=8, scale=-126, feedback=True)")
        model = DistributedDataParallel(Given(3))
        model.register_comm_hook(None, codec_hook)
        with self.assertRaisesRegex((TypeError, RuntimeError), "the state of codec_hook is None: it must be a Codec"):
            model(torch.ones(3)).backward()

    def test_model(self):
        """A model in several buckets, which are rebuilt, trains to the same weights on all ranks, nearly those without the hook, from fewer bytes."""
        weights = []
        for codec in None, Codec(bound=10), Codec(bound=6, scale=3, feedback=False):
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 700), torch.nn.ReLU(), torch.nn.Linear(700, 400))
            there, steps = DistributedDataParallel(model, bucket_cap_mb=0.1), []

            def hook(state, bucket):
                steps[-1].append(bucket.buffer().numel())
                return codec_hook(state, bucket)

            if codec is not None:
                hook.__annotations__ = codec_hook.__annotations__
                there.register_comm_hook(codec, hook)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            random = torch.Generator().manual_seed(rank)
            for _ in range(8):
                steps.append([])
                optimizer.zero_grad()
                x = torch.randn(16, 20, generator=random)
                (there(x) - x[:, :1]).square().mean().backward()
                optimizer.step()
            weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy())
            self.assertEqual(len(set(everywhere(weights[-1].tobytes()))), 1)
            if codec is not None:
                self.assertGreater(len(steps[-1]), 1)
                self.assertNotEqual(steps[0], steps[-1])
                floats = 8 * 4 * len(weights[0]) * 2 * (ranks - 1) / ranks
                self.assertLess(codec.sent_bytes, floats * 0.75)
        np.testing.assert_allclose(weights[1], weights[0], rtol=0, atol=2e-3)
        self.assertTrue((weights[1] != weights[0]).any())

    def test_feedback(self):
        """What is cut is in what is sent later, to the last bit."""
        for codec in Codec(bound=6), Codec(bound=6, scale=4), Codec(bound=1, scale=-126):
            model = parallel(Given(50, (30, 7), 1), codec, bucket_cap_mb=0.0005)
            got, given = ([torch.zeros(s, dtype=torch.float64) for s in (50, (30, 7), 1)] for _ in range(2))
            for i in range(5):
                gradients = [numbers(*g.shape, seed=i) for g in given]
                for sums, values in (got, step(model, *gradients)), (given, gradients):
                    for s, v in zip(sums, values):
                        s += v
                for g, s, left in zip(given, got, kept(codec, model)):
                    self.assertTrue(torch.equal(mean(g), s + mean(left) * ranks))
            self.assertTrue(any(mean(left.abs()).any() for left in kept(codec, model)))
            if codec.scale is None:  # small values are sent, too, if there are no others
                for _ in range(10):
                    for s, v in zip(got, step(model, *(torch.zeros(g.shape) for g in given))):
                        s += v
                for g, s, left in zip(given, got, kept(codec, model)):
                    self.assertTrue(torch.equal(mean(g), s))
                    self.assertFalse(left.any())

    def test_bound(self):
        """Without feedback nothing is kept, and a sum differs by less than the bound for each coding."""
        codec = Codec(bound=8, scale=2, feedback=False)
        model = parallel(Given(1000), codec)
        for i in range(3):
            values = numbers(1000, seed=i)
            (got,) = step(model, values)
            self.assertLess((got - mean(values)).abs().max().item(), ranks * 2.0**-10)
        self.assertEqual(codec._cut._of, {})

    def test_small(self):
        """Parameters without elements, and fewer values than ranks."""
        for shapes in ((0,), (3,)), ((1,),), ((0,), (2, 0)), ((64 * ranks + 1,), ()):
            values = [torch.full(s, 0.5) for s in shapes]
            for _ in range(2):
                for got, value in zip(step(model := parallel(Given(*shapes)), *values), values):
                    self.assertTrue(torch.equal(got, value))
                step(model, *values)

    def test_not_finite(self):
        """NaN and infinity arrive, other values as ever, and nothing of them stays."""
        codec = Codec()
        model = parallel(Given(200), codec)
        values = torch.full((200,), 0.25)
        if rank == 1:
            values[3], values[70], values[199] = float("nan"), float("inf"), -float("inf")
        (got,) = step(model, values)
        self.assertTrue(got[3].isnan())
        self.assertEqual((got[70].item(), got[199].item()), (float("inf"), -float("inf")))
        others = [i for i in range(200) if i not in (3, 70, 199)]
        self.assertTrue((got[others] == 0.25).all())
        self.assertTrue(torch.equal(step(model, torch.full((200,), 0.25))[0], torch.full((200,), 0.25)))

    def test_types(self):
        """Other types go through float32; what that cuts is fed back, too."""
        for dtype in torch.float16, torch.bfloat16, torch.float64:
            codec, parameter = Codec(bound=4), torch.nn.Parameter(torch.zeros(100, dtype=dtype))
            parameter.grad = torch.zeros(100, dtype=dtype)
            values = (numbers(100) * 64).to(torch.bfloat16)  # which are exact in all of them
            total = torch.zeros(100, dtype=torch.float64)
            for i in range(8):
                gradient = (values if i == 0 else torch.zeros(100)).to(dtype, copy=True)  # the hook changes it
                bucket = types.SimpleNamespace(buffer=lambda: gradient, index=lambda: 0, parameters=lambda: [parameter])
                got = codec_hook(codec, bucket).wait()  # without a model, of which not every gloo can broadcast float16 and bfloat16
                self.assertEqual(got.dtype, dtype)
                self.assertEqual(everywhere(got.tolist()), [got.tolist()] * ranks)
                total += got
            self.assertFalse(codec._cut._of[id(parameter)][1].any())
            torch.testing.assert_close(total, mean(values.to(torch.float32)), rtol=0.01, atol=0.01)
        model = parallel(Given(100, dtype=torch.float64))
        self.assertEqual(step(model, torch.full((100,), 0.5))[0].tolist(), [0.5] * 100)
        with self.assertRaisesRegex(TypeError, "a gradient is of torch.complex64: codec_hook codes torch.float32, torch.float16"):
            codec_hook(Codec(), types.SimpleNamespace(buffer=lambda: torch.zeros(3, dtype=torch.complex64)))

    def test_sparse(self):
        """Sparse gradients go through the group as they are."""
        model = torch.nn.Sequential(torch.nn.EmbeddingBag(8, 2, sparse=True), torch.nn.Linear(2, 1, bias=False))
        torch.nn.init.ones_(model[1].weight)
        there = parallel(model)
        there(torch.tensor([[rank, 5]])).sum().backward()
        self.assertEqual(model[0].weight.grad.to_dense()[5].tolist(), [0.5, 0.5])
        self.assertEqual(model[0].weight.grad.to_dense()[0].tolist(), [0.5 / ranks, 0.5 / ranks])

    def test_unused(self):
        """A parameter that a rank has not used gets the others' gradients; of one that no rank has used nothing is sent, nor lost."""
        codec = Codec(bound=2)
        model = parallel(Given(40, 40), codec, find_unused_parameters=True)
        a, b = numbers(40), numbers(40, seed=1)
        total = [torch.zeros(40, dtype=torch.float64) for _ in range(2)]

        def take(*gradients):
            for t, got in zip(total, step(model, *gradients)):
                t += 0 if got is None else got

        take(a, b)
        self.assertTrue(mean(kept(codec, model)[1].abs()).any())
        for _ in range(3):
            before = kept(codec, model)[1]
            take(torch.zeros(40), None)
            self.assertTrue(torch.equal(kept(codec, model)[1], before))
        take(torch.zeros(40), b if rank else None)
        for _ in range(12):
            take(torch.zeros(40), torch.zeros(40))
        for t, given in zip(total, (a, b + b if rank else b)):
            self.assertTrue(torch.equal(t, mean(given)))

    def test_models(self):
        """Models with a codec of their own, and with one for all, in one backward pass and in turns."""
        one = Codec()
        for codecs in (one, one), (Codec(bound=9), Codec(bound=3, scale=0)):
            models = [parallel(Given(70), codec) for codec in codecs]
            for i in range(3):
                for model in models:
                    model.zero_grad(set_to_none=True)
                losses = [model(torch.full((70,), 0.5)) for model in models]
                if i:
                    sum(losses).backward()
                else:
                    for loss in losses:
                        loss.backward()
                for model in models:
                    (p,) = model.parameters()
                    self.assertEqual(p.grad.tolist(), [0.5] * 70)

    def test_accumulation(self):
        """Gradients are collected without an exchange, and then sent once; a bucket may be the gradients themselves."""
        for view in False, True:
            codec = Codec()
            model = parallel(Given(30), codec, gradient_as_bucket_view=view)
            step(model, torch.full((30,), 0.25))
            sent = codec.sent_bytes
            for p in model.parameters():
                p.grad = None
            with model.no_sync():
                model(torch.full((30,), 0.25 * rank)).backward()
            self.assertEqual(codec.sent_bytes, sent)
            model(torch.full((30,), 0.5)).backward()
            (p,) = model.parameters()
            self.assertEqual(p.grad.tolist(), [0.5 + 0.25 * (ranks - 1) / 2] * 30)

    def test_join(self):
        """Ranks with fewer batches than others take part in the others' exchanges."""
        model = parallel(Given(30))
        with model.join():
            for _ in range(1 + rank):
                model.zero_grad(set_to_none=True)
                model(torch.full((30,), 0.5)).backward()
        (p,) = model.parameters()
        self.assertEqual(everywhere(p.grad[0].item()), [0.5 * (ranks - r) / ranks for r in range(ranks)])

    def test_groups(self):
        """A model on a group of its own, of all ranks or of some. A codec goes on with the next default group."""
        everyone = dist.new_group()
        self.assertEqual(step(parallel(Given(9), Codec(group=everyone), process_group=everyone), torch.ones(9))[0].tolist(), [1] * 9)
        pairs = [dist.new_group([i, i + 1]) for i in range(0, ranks, 2)]
        mine = pairs[rank // 2]
        model = parallel(Given(9), Codec(group=mine), process_group=mine)
        model(torch.full((9,), float(rank))).backward()
        self.assertEqual(next(model.parameters()).grad.tolist(), [rank // 2 * 2 + 0.5] * 9)
        alone = [dist.new_group([i]) for i in range(ranks)][rank]
        model = parallel(Given(9), Codec(group=alone), process_group=alone)
        model(torch.full((9,), 1 / 3)).backward()
        self.assertEqual(next(model.parameters()).grad.tolist(), torch.full((9,), 1 / 3).tolist())
        codec = Codec()
        step(parallel(Given(9), codec), torch.ones(9))
        end()
        begin()
        self.assertEqual(step(parallel(Given(9), codec), torch.ones(9))[0].tolist(), [1] * 9)

    def test_copies(self):
        """A copy codes alike, has connections of its own, and nothing of what its model has cut."""
        used = Codec(bound=4, scale=0, feedback=False, group=dist.new_group())
        model = parallel(Given(9), used, process_group=used._group)
        model(torch.full((9,), 0.15625)).backward()
        copies = [copy.copy(used), copy.deepcopy(used)]
        with self.assertRaisesRegex(TypeError, "a Codec with a group cannot be pickled: give the one that is unpickled a group of its process"):
            pickle.dumps(used)
        self.assertEqual([c._group for c in copies], [used._group] * 2)
        used = Codec(bound=4, scale=0, timeout=datetime.timedelta(seconds=30))
        model = parallel(Given(9), used)
        step(model, torch.full((9,), 0.15625))
        copies += [copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used)), pickle.loads(pickle.dumps(Codec(bound=4, scale=0)))]
        self.assertEqual([(repr(c), c.sent_bytes, c._cut._of) for c in copies[2:]], [("Codec(bound=4, scale=0, feedback=True)", 0, {})] * 4)
        self.assertEqual({c._timeout.total_seconds() for c in copies[2:5]}, {30})
        saved = copy.deepcopy(model).module
        self.assertEqual([p.shape for p in saved.parameters()], [(9,)])
        del model, used, saved
        gc.collect()  # a copy goes on when the original has gone
        for codec in copies:
            group = {} if codec._group is None else {"process_group": codec._group}
            self.assertEqual(step(parallel(Given(9), codec, **group), torch.full((9,), 0.5))[0].tolist(), [0.5] * 9)

    def test_destroyed(self):
        """A program that destroys the default group in a step is told so."""
        model = parallel(Given(9))
        loss = model(torch.ones(9))
        end()
        try:
            with self.assertRaisesRegex(RuntimeError, "the default process group was destroyed before the end of a backward pass: destroy it afterwards"):
                loss.backward()
        finally:
            begin()

    def test_other_codec(self):
        odd = rank == ranks - 1
        for what, codec, text in (
            ("bound", Codec(bound=8 if odd else 10), "bound 8, rank 0 one of bound 10"),
            ("scale", Codec(scale=0 if odd else None), "scale 0, rank 0 one of scale by fit"),
        ):
            model = Given(9)
            self.refused(libra.torch.Mismatch, f"^rank {ranks - 1} has a Codec of {text}: give all ranks the same$", parallel(model, codec), torch.ones(9))
            self.assertEqual(step(parallel(model), torch.ones(9))[0].tolist(), [1] * 9)
        bucket = types.SimpleNamespace(buffer=lambda: torch.ones(3), index=lambda: 0, parameters=lambda: [])
        with self.assertRaisesRegex(RuntimeError, "Mismatch: .*give all ranks the same"):  # as join calls it, outside of a backward pass
            codec_hook(Codec(bound=8 if odd else 10), bucket).wait()

    def test_other_order(self):
        """Ranks that exchange other buckets are told of it, all of them, once and for all."""
        for shape, text in ((200, "bucket 0 of (100|200) values"), ((10, 10), "their parameters have other shapes")):
            codec = Codec()
            models = [parallel(Given(s), codec) for s in (100, shape)]
            for _ in range(2):  # in the second, buckets are rebuilt
                for model, s in zip(models, (100, shape)):
                    step(model, torch.ones(s))
            for model, s in zip(models, (100, shape)) if rank != 1 else zip(models[::-1], (shape, 100)):
                told = self.refused(ValueError, text, model, torch.ones(s))
                self.assertRegex(told, "in step 1 of exchange 5, rank .*: all ranks must train the same models, in the same order")
            self.assertEqual(len(set(everywhere(told))), 1)

    def test_malformed(self):
        """Codes that are none end the exchange on all ranks."""
        send, header = libra.torch._ring.Ring._send, libra.torch._ring._HEADER

        def other(ring, message, *rest):
            message[header.size :] = 255
            send(ring, message, *rest)

        def packing(pack):
            return mock.patch("libra.torch._ring._HEADER", types.SimpleNamespace(pack=pack, unpack=header.unpack))

        for wrong, text in (
            (mock.patch("libra.torch._ring.Ring._send", other), "got codes from rank 1 that are none: libra_decode: malformed at byte"),
            (packing(lambda *of: header.pack(*of[:-1], 10**5)), "got 100000 bytes of codes of scale .* for"),
            (packing(lambda *of: header.pack(77, *of[1:])), "got a header from rank 1 that is none, of kind 77"),
        ):
            model = parallel(Given(900))
            with wrong if rank == 1 else contextlib.nullcontext():
                told = self.refused(libra.Malformed, text, model, torch.ones(900))
            self.assertIn(f"rank {2 % ranks} got", told)
        self.assertTrue(issubclass(libra.Malformed, ValueError))

    def test_not_come(self):
        """Ranks that do not come, to the first exchange or to a later one, are named to all others."""
        for late in {1, ranks - 1}:
            for steps in 0, 2:
                model = parallel(Given(9), Codec(timeout=datetime.timedelta(seconds=2)))
                for _ in range(steps):
                    step(model, torch.ones(9))
                if rank == late:
                    time.sleep(0.1)
                else:
                    exchange = "exchange 3" if steps else "the codec's first exchange"
                    self.refused(TimeoutError, f"^rank {late} has not come to {exchange} within 2 s: let all ranks take", model, torch.ones(9))
                dist.barrier()
                if rank == late:  # it comes at last
                    self.refused(TimeoutError, f"^rank {late} has not come to", model, torch.ones(9))

    def test_other_error(self):
        """Any other error of a rank ends the exchange on all of them."""

        def encode(bound, scale, values):
            raise MemoryError("no room")

        model = parallel(Given(900))
        with mock.patch("libra.torch._ring.encode", encode) if rank == 1 else contextlib.nullcontext():
            self.refused(RuntimeError, "^rank 1: MemoryError: no room", model, torch.ones(900))


def death(dies):
    """A rank ends in a step: all others are told which one, and may end in order."""
    begin()
    model = parallel(Given(900))
    for _ in range(2):
        step(model, torch.ones(900))
    if rank == dies:
        os._exit(0)
    try:
        model(torch.ones(900)).backward()
    except ConnectionError as e:
        assert f"rank {dies} has ended, or closed its connections, in exchange 3: start all ranks again" in str(e), e
    else:
        raise SystemExit("a rank has ended, and the exchange has not")
    dist.destroy_process_group()


if __name__ == "__main__":
    program = unittest.main(argv=sys.argv[:1] + os.environ.get("ONLYTEST", "").split(), verbosity=2 if "ONLYTEST" in os.environ else 0, exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    if os.environ.get("DIES"):
        death(int(os.environ["DIES"]))
