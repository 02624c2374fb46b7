# SPDX-License-Identifier: Apache-2.0
"""Tests with the real agent, at LIBRA_AGENT. The job is "clicks", with rows of two floats, of which 0 to 49 are hot, SGD of rate 1."""

import contextlib
import gc
import os
import re
import select
import signal
import sys
import threading
import time
import types
import unittest
import warnings
import weakref
from unittest import mock

import numpy as np

import libra
from libra import _errors, _library

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background begin with SIGINT ignored


def dial(**options):
    return libra.Session("clicks", client="python", dim=2, **options)


def dial_party():
    """Opens a session, and ends the step in which sessions of earlier tests have pushed before they ended: it is dropped."""
    session = dial(parties=1)
    with contextlib.suppress(libra.StepDropped):
        session.barrier()
    return session


class Requests(unittest.TestCase):
    def setUp(self):
        self.session = dial_party()
        self.addCleanup(self.session.close)

    def weights(self, keys):
        """The weights after a step, which ends with the gradients pushed before."""
        self.session.barrier()
        return self.session.pull(keys)

    def test_push_and_pull(self):
        keys = np.array([3, 70, 2**63], np.uint64)
        gradients = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        before = self.weights(keys)
        self.assertEqual((before.shape, before.dtype), ((3, 2), np.float32))
        self.session.push(keys, gradients)
        self.session.push([3, 70], [[1, 1], [1, 1]])  # lists, and other types
        self.session.push(np.zeros(0, np.int64), np.zeros((0, 2)))
        gradients[:] = np.nan  # free again
        np.testing.assert_array_equal(self.weights(keys), before - np.array([[2, 3], [4, 5], [5, 6]], np.float32))
        out = np.empty((3, 2), np.float32)
        self.assertIs(self.session.pull(keys, out), out)
        np.testing.assert_array_equal(out, self.session.pull(keys))

    def test_tickets(self):
        tickets = [self.session.push_later([k], [[k, k]]) for k in range(20)]
        pulls = [self.session.pull_later([k]) for k in range(20)]
        for ticket in tickets:
            self.assertIsNone(ticket.wait(600))
            self.assertTrue(ticket.done() and ticket.accepted())
            self.assertIsNone(ticket.wait())
        late = self.session.push_later([1], [[0, 0]])
        self.session.flush()
        self.assertIsNone(late.wait(0))  # complete, though no time is left
        rows = np.concatenate([ticket.wait() for ticket in pulls])
        np.testing.assert_array_equal(rows, self.session.pull(np.arange(20)))

    def test_ticket_keeps_arrays(self):
        """The agent may still read or write them, though the program has dropped them."""
        keys, gradients = np.array([1, 70], np.uint64), np.zeros((2, 2), np.float32)
        of = [weakref.ref(keys), weakref.ref(gradients)]
        ticket = self.session.push_later(keys, gradients)
        del keys, gradients
        self.assertTrue(all(array() is not None for array in of))
        ticket.wait()
        self.assertTrue(all(array() is None for array in of))

    def test_reduce(self):
        before = self.weights([7, 1000])
        self.session.push([1000, 7], [[1, 0], [0.5, 2]])
        keys, sums = self.session.reduce(np.array([7, 2**64 - 1], np.uint64), [[0.25, -2], [3, 4]])
        np.testing.assert_array_equal(keys, np.array([7, 1000, 2**64 - 1], np.uint64))
        np.testing.assert_array_equal(sums, np.array([[0.75, 0], [1, 0], [3, 4]], np.float32))
        np.testing.assert_array_equal(self.session.pull([7, 1000]), before - sums[:2])
        many = np.arange(10**6, dtype=np.uint64)  # more than the buffers hold
        keys, sums = self.session.reduce(many, np.ones((len(many), 2)))
        np.testing.assert_array_equal(keys, many)
        self.assertTrue((sums == 1).all() and sums.shape == (10**6, 2))
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.reduce([4, 90], [[1, 2], [np.nan, 3]])
        self.assertEqual((failed.exception.index, failed.exception.key), (2, 90))
        bad = np.ones((len(many), 2))
        bad[900_000, 1] = np.inf
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.reduce(many, bad)
        self.assertEqual((failed.exception.index, failed.exception.key), (1_800_001, 900_000))
        with self.session.prepare([3, 4]) as batch:
            np.testing.assert_array_equal(self.session.reduce(batch, np.ones((2, 2)))[0], [3, 4])
        self.session.push([4], [[1e9, 0]])
        with self.assertRaises(libra.StepDropped) as failed:  # for what was refused before
            self.session.reduce([3], [[1, 2]])
        self.assertEqual((failed.exception.key, failed.exception.name), (4, "DROPPED"))
        keys, sums = self.session.reduce([3], [[5, 6]])  # and the next step goes on
        np.testing.assert_array_equal((keys[0], *sums[0]), (3, 5, 6))
        self.session.flush()

    def test_prepared(self):
        before = self.weights([1, 60])
        with self.session.prepare([1, 60]) as batch:
            self.assertEqual(len(batch), 2)
            for _ in range(10):
                self.session.push(batch, np.ones((2, 2)))
            np.testing.assert_array_equal(self.weights(batch), before - 10)
            with self.assertRaisesRegex(TypeError, "keys is a Batch already"):
                self.session.prepare(batch)
        with self.assertRaisesRegex(ValueError, "was released"):
            self.session.push(batch, np.ones((2, 2)))
        self.assertEqual(self.session.statistics().prepared_bytes, 0)

    def test_shared_arrays(self):
        before = self.weights([5, 80])
        keys, gradients, rows = self.session.empty(2, np.uint64), self.session.empty((2, 2)), self.session.empty((2, 2))
        keys[:], gradients[:] = [5, 80], 1
        for _ in range(300):  # more than the ring has
            self.session.push(keys, gradients)
        self.session.pull(keys, rows)
        np.testing.assert_array_equal(self.weights([5, 80]), before - 300)
        self.assertEqual(self.session.empty((0, 2)).shape, (0, 2))
        for _ in range(10):
            self.session.empty((1 << 20, 1))[:] = 1  # 4 of 8 MiB, given back each time
        with self.assertRaisesRegex(libra.TooLarge, "ask for more buffer_bytes"):
            self.session.empty(1 << 30)
        # Arrays without a reference stay until the agent has read them.
        before = self.weights([5])
        for i in range(120):  # 9.6 MB in 8 MiB
            big = self.session.empty((10000, 2))
            big[:] = i % 4 / 64
            self.session.push(np.full(10000, 5), big)
            del big
        np.testing.assert_array_equal(self.weights([5]), before - 10000 * 180 / 64)

    def test_failures(self):
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.push_later([4, 90], [[1, 2], [np.inf, 3]]).wait()
        e = failed.exception
        self.assertEqual((e.index, e.key, e.name, e.code), (2, 90, "NOT_FINITE", 32))
        self.assertIn("push of 2 keys, job clicks: a gradient is NaN or infinite: number 2, key 90", str(e))
        with self.assertRaises(libra.NotFinite) as failed:  # by the flush, too
            self.session.flush()
        self.assertEqual((failed.exception.index, failed.exception.key), (2, 90))
        self.session.push([4], [[1e9, 0]])
        with self.assertRaises(ValueError) as failed:
            self.session.flush()
        self.assertIsInstance(failed.exception, libra.OutOfRange)
        with self.assertRaisesRegex(libra.Error, "the job.s mode is combine: sums in answers need mode fetchadd"):
            self.session.push_sums([1], [[1, 1]])
        with self.assertRaises(libra.Error):
            self.session.flush()
        with self.assertRaises(libra.TooLarge):
            self.session.push(np.zeros(1 << 20, np.uint64), np.zeros((1 << 20, 2)))
        for keys, gradients, text in (
            ([-1], [[1, 1]], "keys has -1"),
            ([1.5], [[1, 1]], "keys has type float64"),
            ([[1]], [[1, 1]], r"keys has shape \(1, 1\)"),
            ([1], [[1, 1, 1]], r"gradients has shape \(1, 3\), \(1, 2\) is wanted"),
            ([1], [["a", "b"]], "gradients has type"),
            ([1], [[1, 2j]], "gradients has type complex128, float32 is wanted"),
        ):
            with self.assertRaisesRegex((ValueError, TypeError), text):
                self.session.push(keys, gradients)
        with self.assertRaises(libra.NotFinite) as failed:  # an infinity as float32
            self.session.push_later([4], [[1, 1e300]]).wait()
        self.assertEqual(failed.exception.index, 1)
        with self.assertRaises(libra.NotFinite):
            self.session.flush()
        fixed = np.empty((1, 2), np.float32)
        fixed.flags.writeable = False
        for out in np.empty((1, 2)), fixed:
            with self.assertRaisesRegex(ValueError, "out is not a contiguous, writeable array of float32"):
                self.session.pull([1], out)

    def test_descriptor(self):
        ticket = self.session.pull_later([1])
        while not ticket.done():
            select.select([self.session], [], [])
            self.session.process()
        self.assertEqual(ticket.wait().shape, (1, 2))

    def test_info(self):
        info = self.session.info
        self.assertEqual((info.dim, info.mode, info.arithmetic, info.exponent, info.hot_rows), (2, "combine", "exact", -46, 50))
        self.assertEqual((len(info.hot_set), self.session.dim), (32, 2))
        self.assertIn("dim 2", repr(self.session))
        dial(hot_set=info.hot_set).close()


class Life(unittest.TestCase):
    def test_threads(self):
        session = dial_party()
        before = session.pull(np.arange(8))

        def push(key):
            for _ in range(200):
                session.push([key, (key + 1) % 8], np.ones((2, 2)))
                session.pull([key])

        threads = [threading.Thread(target=push, args=(key,)) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session.barrier()
        np.testing.assert_array_equal(session.pull(np.arange(8)), before - 400)
        session.close()

    def test_refusals(self):
        for options, text in (
            ({"job": "nothing"}, "NO_JOB"),
            ({"job": "clicks", "dim": 3}, "DIMENSION"),
            ({"job": "clicks", "hot_set": bytes(31) + b"x"}, "HOT_SET"),
        ):
            with self.assertRaises(libra.Error) as failed:
                libra.Session(**options)
            self.assertEqual(failed.exception.name, text)
        with self.assertRaisesRegex(ConnectionError, "there is no /nowhere: start libra agent"):
            libra.Session("clicks", socket="/nowhere")
        with self.assertRaisesRegex(ValueError, "hot_set has 3 bytes"):
            libra.Session("clicks", hot_set=b"abc")
        for name, value in ("dim", 2**32 + 2), ("parties", -1), ("entries", 2**32 + 8), ("buffer_bytes", 2**64), ("spin_us", 2**32):
            with self.assertRaisesRegex(ValueError, f"{name} is {value}"):
                libra.Session("clicks", **{name: value})

    def test_end(self):
        with dial() as session:
            array = session.empty(4)
            session.push([1], [[0, 0]])
            ticket = session.pull_later([1])
        array[:] = 1  # outlives the session
        self.assertEqual(array.sum(), 4)
        with self.assertRaises(libra.SessionClosed):
            session.push([1], [[1, 1]])
        with self.assertRaises(libra.SessionClosed):
            ticket.wait()
        session.close()
        with self.assertRaisesRegex(KeyError, "mine"):
            with dial() as session:
                session.push([1], [[0, 0]])
                raise KeyError("mine")
        with self.assertWarnsRegex(UserWarning, "libra: .*NaN or infinite"), self.assertRaisesRegex(KeyError, "mine"):
            with dial() as session:
                session.push([1], [[0, np.nan]])
                raise KeyError("mine")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dial()
            gc.collect()
        self.assertEqual([w.category for w in told], [ResourceWarning])

    def test_abandoned(self):
        """The end of a session gives back its place, and arrays that were kept for the agent, though others keep its memory."""
        session = dial(parties=1)
        batch, shared, gradients = session.prepare([1]), session.empty(4), np.zeros((1, 2), np.float32)
        kept = weakref.ref(gradients)
        session.push_later([1], gradients)  # its ticket is dropped
        del gradients
        self.assertIsNotNone(kept())
        session.abandon()
        self.assertIsNone(kept())
        batch.release()  # with the session
        shared[:] = 1
        while True:
            try:
                dial(parties=1).close()
                break
            except libra.Error as e:  # the agent has not seen the end yet
                self.assertEqual(e.name, "PARTIES")

    def test_missing_party(self):
        session = dial(parties=2)  # alone
        with self.assertRaisesRegex(TimeoutError, r"not ended after 0.2 s: 1 of 2 parties of this host have come"):
            session.reduce([3], [[1, 2]], timeout=0.2)
        session.abandon()
        while True:
            try:
                session = dial(parties=1)
                break
            except libra.Error as e:  # the agent has not seen the end yet
                self.assertEqual(e.name, "PARTIES")
        with self.assertRaises(libra.StepDropped):  # its push is not applied in silence
            session.barrier()
        session.barrier()
        session.close()

    def test_push_during_a_step(self):
        """A push of another thread during the end of a step belongs to the next one, and so do the requests after it."""
        session, other = dial(parties=2), dial(parties=2)
        session.push([2**40], [[1, 1]])
        sums = {}

        def reduce(key):
            sums[key] = session.reduce([key], [[1, 1]])

        first = threading.Thread(target=reduce, args=(1,))
        first.start()
        while other.statistics().step_arrived == 0:
            time.sleep(0.001)
        later = session.push_later([2**41], [[100, 100]])
        second = threading.Thread(target=reduce, args=(2,))
        second.start()
        for _ in range(100):
            other.statistics()  # each is a turn of the agent
        self.assertFalse(later.done() or later.accepted())
        other.barrier()
        first.join()
        later.wait(600)
        other.barrier()
        second.join()
        np.testing.assert_array_equal(sums[1][0], [1, 2**40])
        np.testing.assert_array_equal(sums[2][0], [2, 2**41])
        np.testing.assert_array_equal(sums[2][1], [[1, 1], [100, 100]])
        session.close()
        other.close()

    def test_fork(self):
        with dial() as session:
            child = os.fork()
            if child == 0:
                try:
                    session.push([1], [[1, 1]])
                except libra.Forked:
                    for call in session.fileno, session.process:
                        try:
                            call()
                            os._exit(2)
                        except libra.Forked:
                            pass
                    with dial() as own:
                        own.push([1], [[0, 0]])
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            session.push([1], [[0, 0]])

    def test_interrupt(self):
        """Ctrl-C ends a wait for a party that does not come."""
        with self.assertRaises(KeyboardInterrupt):
            with dial(parties=2) as session:
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
                session.barrier()


class Library(unittest.TestCase):
    def test_wrong(self):
        for path, text in ("/nowhere.so", "/nowhere.so cannot be loaded: .*LIBRA_LIBRARY"), ("libc.so.6", "libc.so.6 has no function libra_version"):
            with self.assertRaisesRegex(libra.LibraryNotFound, text):
                _library.Library(path)
        self.assertEqual(libra.version(), libra.__version__)
        with mock.patch.object(_library, "VERSION", "99.1.0"), self.assertRaisesRegex(libra.LibraryNotFound, rf"is of Libra {libra.__version__}, this package of 99.1.0: take both from one release"):
            _library.Library(os.environ["LIBRA_LIBRARY"])

    def test_header(self):
        """Structures and functions are those of libra.h."""
        with open("c/libra.h") as file:
            header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        for name, structure in ("error", _library.CError), ("options", _library.COptions), ("info", _library.CInfo), ("batch", _library.CBatch), ("statistics", _library.CStatistics):
            (body,) = re.findall(rf"struct libra_{name} {{(.*?)}};", header, re.S)
            fields = re.findall(r"(\w+)(\[[0-9]+\])?;", body)
            self.assertEqual([(field, int(n[1:-1]) if n else 1) for field, n in fields], [(f[0], getattr(f[1], "_length_", 1)) for f in structure._fields_])
        for name, (_, arguments) in _library._functions.items():
            (declared,) = re.findall(rf"LIBRA_API [^;]*\blibra_{name}\(([^)]*)\);", header)
            self.assertEqual(0 if declared == "void" else declared.count(",") + 1, len(arguments), name)

    def test_error(self):
        """What the library reports about a refusal is in the exception."""
        c = _library.CError(peer=2, refusal=12, key_known=1, key=9, index=5, acknowledged=1, refused=2, unknown=3, text=b"why")
        fake = types.SimpleNamespace(last_error=lambda: types.SimpleNamespace(contents=c), code_name=lambda code: b"NAME")
        with mock.patch.object(_errors, "library", lambda: fake):
            refused, bad = _errors.error(36), _errors.error(33)
            c.key_known = c.peer = 0
            other = _errors.error(37)
        self.assertEqual((type(refused), refused.code, refused.name, str(refused)), (libra.Refused, 36, "NAME", "why"))
        self.assertEqual((refused.peer, refused.refusal, refused.acknowledged, refused.refused, refused.unknown), ("server", 12, 1, 2, 3))
        self.assertEqual((refused.key, refused.index, bad.index, other.key, other.peer, type(other)), (9, None, 5, None, None, libra.Error))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
