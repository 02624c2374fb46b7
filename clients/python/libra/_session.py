# SPDX-License-Identifier: Apache-2.0
"""Sessions."""

from __future__ import annotations

import ctypes
import os
import time
import warnings
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from ._errors import AgentClosed, AgentDied, Error, StepDropped, TooLarge, check, closed, error
from ._handle import _Handle
from ._info import Info, Statistics
from ._library import STATISTICS, TIMEOUT, CBatch, COptions, CStatistics, library
from ._ticket import _SLICE, Batch, Ticket

Keys = Union[npt.ArrayLike, "Batch"]

_NO_ANSWER = "the agent of this host does not answer: is it stopped, or do pushes of another thread wait for the step's end?"

_MODES = ("combine", "fetchadd", "sync")
_ARITHMETICS = ("exact", "lut", "fixed")


class Session:
    """A session with the agent of this host, for one job.

    ``job`` is the name of the job in the agent's configuration, ``socket`` the path of the agent's socket (by default
    ``$LIBRA_AGENT`` or ``/run/libra/agent.sock``), ``client`` the name of this program in the agent's
    statistics. ``dim`` and ``hot_set`` (a SHA-256, 32 bytes) are refused unless they are the job's. ``parties`` is the number
    of this host's sessions that meet at :meth:`barrier`. ``entries`` and ``buffer_bytes`` bound the requests on
    their way (256, 8 MiB). With ``owner``, the agent creates a job without a parameter server (such as ``"hot/3"``), which
    ends with this session, and whose sums :meth:`harvest` returns. ``spin_us`` is for how many microseconds a wait
    looks for the answer before it sleeps, while that pays (400; 1 is next to none).

    Any number of threads may use a session. After a fork it belongs to the parent alone: in the child its methods raise
    :class:`Forked`, and arrays of :meth:`empty` must not be touched.
    """

    def __init__(
        self,
        job: str,
        *,
        socket: Union[str, "os.PathLike[str]", None] = None,
        client: str = "",
        dim: int = 0,
        parties: int = 0,
        hot_set: Optional[bytes] = None,
        entries: int = 0,
        buffer_bytes: int = 0,
        spin_us: int = 0,
        owner: bool = False,
    ) -> None:
        self._handle: Optional[_Handle] = None
        self._abandoned: List[Tuple[int, Tuple[Any, ...]]] = []
        self._reduced = 0  # rows of the last reduce or harvest
        if hot_set is not None and len(hot_set) != 32:
            raise ValueError(f"hot_set has {len(hot_set)} bytes, a SHA-256 has 32")
        for name, value in (("dim", dim), ("parties", parties), ("entries", entries), ("buffer_bytes", buffer_bytes), ("spin_us", spin_us)):
            if not 0 <= value < 1 << (64 if name == "buffer_bytes" else 32):
                raise ValueError(f"{name} is {value}")
        options = COptions(
            size=ctypes.sizeof(COptions),
            socket=None if socket is None else os.fsencode(socket),
            job=job.encode(),
            client=client.encode(),
            hot_set=hot_set,
            buffer_bytes=buffer_bytes,
            entries=entries,
            dim=dim,
            parties=parties,
            spin_us=spin_us,
            room_ms=_SLICE,
            owner=int(owner),
        )
        self._handle = _Handle(options)
        c = self._c("info").contents
        self._info = Info(
            dim=c.dim,
            mode=_MODES[c.mode] if c.mode < len(_MODES) else str(c.mode),
            arithmetic=_ARITHMETICS[c.arithmetic] if c.arithmetic < len(_ARITHMETICS) else str(c.arithmetic),
            exponent=c.exponent,
            hot_rows=c.hot_rows,
            hot_set=bytes(c.hot_set),
            job=c.job,
            client=c.client,
            agent_pid=c.agent_pid,
            entries=c.entries,
            buffer_bytes=c.buffer_bytes,
            prepared_bytes=c.prepared_bytes,
            instance=c.instance,
        )

    @property
    def info(self) -> Info:
        """The job, and what the agent granted."""
        return self._info

    @property
    def dim(self) -> int:
        """Floats of a row."""
        return self._info.dim

    # Requests

    def push(self, keys: Keys, gradients: npt.ArrayLike) -> None:
        """Adds gradients, float32[n, dim], to the rows of keys.

        Returns when the gradients are in the session's memory: the arrays are free again, unless they are from
        :meth:`empty`. :meth:`flush` waits for the acknowledgements and raises what has failed.
        """
        keys, n = self._keys(keys)
        values = self._rows(gradients, n, "gradients")
        if self._shared(keys) or self._shared(values):
            self._push(keys, values, n)  # dropped: the session keeps the arrays until the agent has answered
        else:
            self._call("push", keys, values, n=n)

    def push_later(self, keys: Keys, gradients: npt.ArrayLike) -> Ticket:
        """Like :meth:`push`, but returns a ticket, whose ``wait`` waits for the acknowledgement of this push."""
        keys, n = self._keys(keys)
        return self._push(keys, self._rows(gradients, n, "gradients"), n)

    def _push(self, keys: Any, values: np.ndarray, n: int, end: Optional[float] = None) -> Ticket:
        return self._ticket("push", (keys, values), n, end=end)

    def push_sums(self, keys: Keys, gradients: npt.ArrayLike, out: Optional[np.ndarray] = None) -> np.ndarray:
        """Pushes in a job in mode fetchadd, and returns the sums of hot rows after the addition.

        Rows of cold keys are zeros, or what ``out`` held before.
        """
        keys, n = self._keys(keys)
        values = self._rows(gradients, n, "gradients")
        sums = np.zeros((n, self.dim), np.float32) if out is None else self._out(out, n)
        return self._ticket("push_sums", (keys, values, sums), n, lambda: sums).wait()

    def pull(self, keys: Keys, out: Optional[np.ndarray] = None) -> np.ndarray:
        """Returns the rows of keys, float32[n, dim], in ``out`` if that is given.

        Sees all pushes completed by an earlier :meth:`flush` or :meth:`barrier`, in a job whose steps end by time
        from the end of their step on.
        """
        return self.pull_later(keys, out).wait()

    def pull_later(self, keys: Keys, out: Optional[np.ndarray] = None) -> Ticket:
        """Begins a pull, whose ticket's ``wait`` returns the rows."""
        keys, n = self._keys(keys)
        rows = np.empty((n, self.dim), np.float32) if out is None else self._out(out, n)
        return self._ticket("pull", (keys, rows), n, lambda: rows)

    def prepare(self, keys: npt.ArrayLike) -> Batch:
        """Looks keys up at the agent once, for pushes and pulls that pass the batch in their place."""
        array, n = self._keys(keys)
        if isinstance(array, Batch):
            raise TypeError("keys is a Batch already")
        c = CBatch()
        number = ctypes.c_uint64()
        self._submit("prepare", array.ctypes.data, n, ctypes.byref(c), ctypes.byref(number))
        return Ticket(self, number.value, (array, c), lambda: Batch(self, c)).wait()

    def flush(self) -> None:
        """Waits until all earlier pushes are acknowledged. Raises the first failure since the last flush."""
        self._ticket("flush", ()).wait()

    def barrier(self) -> None:
        """Ends a step: waits for the other parties of this host, for all pushes of all of them, and for the job's other hosts.

        Pushes that follow belong to the next step. Those of other threads, and requests after them, wait for its end.
        Raises :class:`StepDropped` if the step was dropped.
        """
        self._ticket("barrier", ()).wait()

    def reduce(
        self, keys: Keys, gradients: npt.ArrayLike, timeout: Optional[float] = None, look: Optional[Callable[[], None]] = None
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Ends a step with a push, and returns the sums of what all processes of the job have pushed in it.

        That is an all-reduce of sparse rows: keys, uint64[m], ascending, and their sums, float32[m, dim], the same bits in
        all processes that reduce. Each sum is the float32 nearest to the exact one; rows whose sums are all zero are left
        out. If gradients of any process are refused, the step changes nothing: that process gets the failure of its
        push, such as :class:`NotFinite`, the others :class:`StepDropped`. Needs a job whose workers take steps together.

        Raises TimeoutError if not all of them have come after ``timeout`` seconds. Its text names who is missing: parties
        of this host, or other hosts. The step stays under way, so that :meth:`abandon` is all that is left to do; the
        other parties of this host then get :class:`PartyGone`. So it is with what ``look`` raises, which is called each
        second until all have come, to see whether they still can.
        """
        # Gradients and copies of the sums go through the session's buffers, half of them at a time.
        step = max(1, self._info.buffer_bytes // (2 * (8 + 4 * self.dim)))
        keys, n = self._keys(keys)
        values = self._rows(gradients, n, "gradients")
        parts = 1 if isinstance(keys, Batch) else max(1, -(-n // step))
        end = None if timeout is None else time.monotonic() + timeout
        late = f"the step has not ended after {timeout} s: "
        try:
            pushed = [self._push(keys, values, n, end)] if parts == 1 else []
            for i in range(0, n if parts > 1 else 0, step):
                pushed.append(self._push(keys[i : i + step], values[i : i + step], len(keys[i : i + step]), end))
        except TimeoutError:
            raise TimeoutError(late + _NO_ANSWER) from None
        rows, number = ctypes.c_uint64(), ctypes.c_uint64()
        # A guess of the number of rows: more need a further request.
        room = min(step, self._reduced + self._reduced // 8 + 64 if self._reduced else 2 * n)
        all_keys, sums = np.empty(room, np.uint64), np.empty((room, self.dim), np.float32)
        try:
            self._submit("reduce", all_keys.ctypes.data, sums.ctypes.data, room, ctypes.byref(rows), ctypes.byref(number), end=end)
            Ticket(self, number.value, (rows, all_keys, sums), lambda: None)._wait(end and end - time.monotonic(), look)
        except TimeoutError:
            raise TimeoutError(late + self._missing()) from None
        except StepDropped as e:
            for first, ticket in zip(range(0, n, step), pushed):
                try:
                    ticket.wait()
                except Error as own:  # says more
                    if own.index is not None:
                        own.index += first * self.dim
                    raise own from e
            raise
        return self._all_sums(rows.value, step, all_keys, sums)

    def _all_sums(self, n: int, step: int, all_keys: np.ndarray, sums: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the n rows of a reduce or harvest, of which the first are in all_keys and sums, in copies of ``step``."""
        self._reduced, room = n, len(all_keys)
        if n <= room:
            return all_keys[:n], sums[:n]
        some, number = (all_keys, sums), ctypes.c_uint64()
        all_keys, sums = np.empty(n, np.uint64), np.empty((n, self.dim), np.float32)
        all_keys[:room], sums[:room] = some
        for first in range(room, n, step):
            to = (all_keys[first : first + step], sums[first : first + step])
            self._submit("sums", first, to[0].ctypes.data, to[1].ctypes.data, len(to[0]), ctypes.byref(number))
            Ticket(self, number.value, to, lambda: None).wait()
        return all_keys, sums

    def harvest(self, now: bool = False) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the sums of what all sessions have pushed to the job that this one owns, since the harvest before.

        The result is as that of :meth:`reduce`. Each call acknowledges the harvest before. It waits for the next one that has
        sums, at the earliest the job's harvest period after the one before; with ``now`` it does not wait, and returns all
        that was acknowledged to any session before the call, perhaps nothing.
        """
        step = max(1, self._info.buffer_bytes // (2 * (8 + 4 * self.dim)))
        room = min(step, self._info.hot_rows)
        rows, number = ctypes.c_uint64(), ctypes.c_uint64()
        all_keys, sums = np.empty(room, np.uint64), np.empty((room, self.dim), np.float32)
        self._submit("harvest", int(now), all_keys.ctypes.data, sums.ctypes.data, room, ctypes.byref(rows), ctypes.byref(number))
        Ticket(self, number.value, (rows, all_keys, sums), lambda: None).wait()
        return self._all_sums(rows.value, step, all_keys, sums)

    def _missing(self) -> str:
        """Describes what the end of a step is waiting for."""
        try:
            s = self._statistics(1)
        except TimeoutError:
            return _NO_ANSWER
        if s.step_arrived < s.step_parties:
            return f"{s.step_arrived} of {s.step_parties} parties of this host have come to its end: is a process missing?"
        return f"all {s.step_parties} parties of this host have come to its end, other hosts have not: is a process or an agent missing there?"

    def statistics(self) -> Statistics:
        """Counters of the session and of the job on this host."""
        return self._statistics(None)

    def _statistics(self, timeout: Optional[float]) -> Statistics:
        c = CStatistics()
        number = ctypes.c_uint64()
        self._submit("statistics", ctypes.byref(c), ctypes.byref(number), end=None if timeout is None else time.monotonic() + timeout)
        return Ticket(self, number.value, (c,), lambda: Statistics(*(getattr(c, name) for name in STATISTICS))).wait(timeout)

    # Memory

    def empty(self, shape: Union[int, Sequence[int]], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """An array in the session's memory, which requests use without a copy. Its contents are arbitrary.

        Its room is taken from the session's ``buffer_bytes``, and comes back when the last array that views
        it is gone.
        """
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for n in shape:
            count *= n
        handle = self._open()
        self._reap()
        nbytes = max(1, count * dtype.itemsize)
        while True:
            try:
                address = handle.alloc(nbytes)
                break
            except TooLarge:
                if not self._await_abandoned():
                    raise
        memory = (ctypes.c_char * nbytes).from_address(address)
        weakref.finalize(memory, handle.free, address)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    # Event loops

    def fileno(self) -> int:
        """A descriptor that is readable when requests may be complete: then call :meth:`process`, and ask tickets."""
        fd = self._c("fd")
        if fd < 0:
            raise error(library().last_error().contents.code)
        return int(fd)

    def process(self) -> None:
        """Processes the agent's answers without waiting. Raises the reason if the session has ended."""
        check(self._c("process"))

    # The end

    def close(self) -> None:
        """Waits until all pushes are acknowledged, and ends the session. Raises like :meth:`flush`."""
        if self._handle is None:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Ends the session at once. Pushes that the agent has not read yet are lost."""
        handle, self._handle = self._handle, None
        if handle is not None:
            # Arrays that are still there hold the handle, and with it the memory.
            handle.lib.shutdown(handle.pointer)
            self._abandoned.clear()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Any, failure: Any, trace: Any) -> None:
        if failure is None:
            self.close()
            return
        if not isinstance(failure, Exception):  # Ctrl-C does not wait
            self.abandon()
            return
        try:  # pushes before the exception count
            self.close()
        except Error as e:
            if not isinstance(e, (AgentDied, AgentClosed)):
                warnings.warn(f"libra: {e}", stacklevel=2)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            warnings.warn(f"{self!r} was not closed: pushes may be lost", ResourceWarning, source=self)
            self.abandon()

    def __repr__(self) -> str:
        if getattr(self, "_handle", None) is None:
            return "<libra.Session, closed>"
        return f"<libra.Session, job {self._info.job}, dim {self.dim}, client {self._info.client}>"

    # Common parts

    def _open(self) -> _Handle:
        if self._handle is None:
            raise closed()
        return self._handle

    def _c(self, function: str, *arguments: Any) -> Any:
        handle = self._open()  # held, so that another thread's close does not free it during the call
        return getattr(handle.lib, function)(handle.pointer, *arguments)

    def _shared(self, array: Any) -> bool:
        handle = self._open()
        return isinstance(array, np.ndarray) and handle.low <= array.ctypes.data < handle.high

    def _keys(self, keys: Keys) -> Tuple[Any, int]:
        if isinstance(keys, Batch):
            if keys._session is not self:
                raise ValueError("the batch was released, or belongs to a different session")
            return keys, len(keys)
        array = np.asarray(keys)
        if array.ndim != 1:
            raise ValueError(f"keys has shape {array.shape}, one dimension is wanted")
        if array.dtype.kind == "i":
            if array.size and array.min() < 0:
                raise ValueError(f"keys has {array.min()}: keys are 0 to 2**64 - 1")
        elif array.dtype.kind != "u" and array.size:
            raise TypeError(f"keys has type {array.dtype}, integers are wanted")
        return np.ascontiguousarray(array, np.uint64), array.size

    def _rows(self, values: npt.ArrayLike, n: int, name: str) -> np.ndarray:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} has type {array.dtype}, float32 is wanted")
        if array.shape != (n, self.dim) and not (self.dim == 1 and array.shape == (n,)):
            raise ValueError(f"{name} has shape {array.shape}, ({n}, {self.dim}) is wanted")
        if array.dtype != np.float32:
            with np.errstate(over="ignore"):  # an infinity is refused with its key
                array = array.astype(np.float32)
        return np.ascontiguousarray(array)

    def _out(self, out: np.ndarray, n: int) -> np.ndarray:
        if self._rows(out, n, "out") is not out or not out.flags.writeable:
            raise ValueError("out is not a contiguous, writeable array of float32")
        return out

    def _reap(self) -> None:
        """Collects abandoned tickets that are complete. Failures of pushes are reported at the next flush."""
        for _ in range(len(self._abandoned)):
            try:
                number, kept = self._abandoned.pop(0)
            except IndexError:  # another thread's
                return
            if self._c("wait", number, 0) == TIMEOUT:
                self._abandoned.append((number, kept))

    def _await_abandoned(self) -> bool:
        """Waits for the oldest abandoned ticket, which frees its arrays. False if there is none."""
        try:
            number, _kept = self._abandoned.pop(0)
        except IndexError:
            return False
        while self._c("wait", number, _SLICE) == TIMEOUT:
            pass
        return True

    def _submit(self, function: str, *arguments: Any, end: Optional[float] = None) -> None:
        """Submits a request. Waits for space in the agent's queue until ``end``, if given, or a signal handler raises."""
        if self._abandoned:
            self._reap()
        while True:
            code = self._c(function, *arguments)
            if code != TIMEOUT:
                break
            if end is not None and time.monotonic() >= end:
                raise TimeoutError("timed out waiting for space in the agent's queue")
        check(code)

    def _call(self, name: str, keys: Any, *arrays: np.ndarray, n: int, number: Optional[ctypes.c_uint64] = None, end: Optional[float] = None) -> None:
        ticket = None if number is None else ctypes.byref(number)
        pointers = [a.ctypes.data for a in arrays]
        if isinstance(keys, Batch):
            self._submit(name + "_batch", ctypes.byref(keys._c), *pointers, ticket, end=end)
        else:
            self._submit(name, keys.ctypes.data, *pointers, n, ticket, end=end)

    def _ticket(self, name: str, kept: Tuple[Any, ...], n: int = 0, result: Callable[[], Any] = lambda: None, end: Optional[float] = None) -> Ticket:
        number = ctypes.c_uint64()
        if kept:
            self._call(name, kept[0], *kept[1:], n=n, number=number, end=end)
        else:
            self._submit(name, ctypes.byref(number))
        return Ticket(self, number.value, kept, result)
