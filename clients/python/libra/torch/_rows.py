# SPDX-License-Identifier: Apache-2.0
"""All-reduces of sparse tensors by the steps of a job."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

from .._errors import Error, NotFinite, OutOfRange, PartyGone, Refused, StepDropped
from .._session import Session
from ._ended import Watch, ended_text
from ._tensors import coalesced


class Mismatch(ValueError):
    """The ranks called all_reduce with tensors of different shapes or types. All of them get this error."""

    _layout: Optional[int] = None  # sparse dimensions of the ranks' tensors that have rows, if those match but for this


# A step's sums show whether all ranks passed the same kind of tensor. Each rank adds a 1, the digits of a hash of its kind,
# and their squares. If both sums of a digit match those of ranks that all have it, all have it: their mean is the digit, and their variance is zero.
# Sums are whole numbers of up to 15^2 a rank, which the job has to be able to add up.
_DIGITS = 16


class _Kind:
    """What all ranks must agree on: a shape, a type and an operation, in a job of ``dim`` floats per row."""

    def __init__(self, shape: torch.Size, sparse: int, dtype: torch.dtype, op: str, dim: int, ranks: int) -> None:
        self.text = f"shape {list(shape)}, {sparse} of its dimensions sparse, {dtype}, {op}"
        self.sparse = sparse
        self.width = math.prod(shape[1:])  # floats of a row of the tensor
        self.chunks = max(1, -(-self.width // dim))  # rows of the job that it takes
        self.ours = op == "SUM" and dtype == torch.float32 and sparse == 1 and self.width > 0 and shape[0] * self.chunks < 1 << 62
        digest = hashlib.blake2b(self.text.encode(), digest_size=_DIGITS // 2).digest()
        digits = np.array([d for byte in digest for d in (byte >> 4, byte & 15)], np.float32)
        seal = np.concatenate([np.ones(1, np.float32), digits, digits**2])
        self.seal = np.pad(seal, (0, -len(seal) % dim)).reshape(-1, dim)  # its rows have the smallest keys: keys far apart cost more
        self.keys = np.arange(len(self.seal), dtype=np.uint64)
        sums = self.seal * np.float32(ranks)
        agreed = np.flatnonzero(sums.any(axis=1))  # rows of zeros are left out of sums
        self.agreed = len(agreed)
        self._bits = agreed.astype(np.uint64).tobytes(), sums[agreed].tobytes()

    def is_agreed(self, keys: np.ndarray, values: np.ndarray) -> bool:
        """Whether these sums, of ascending keys, come from ranks that all have this kind."""
        n = self.agreed
        return (keys[:n].tobytes(), values[:n].tobytes()) == self._bits and (len(keys) == n or keys[n] >= len(self.seal))


_kind = functools.lru_cache(maxsize=64)(_Kind)


class Rows:
    """Sums the sparse tensors of all ranks. :func:`connect` makes one; it is closed with its last reference."""

    def __init__(self, session: Session, clients: Dict[int, int]) -> None:
        """``clients`` has the ranks of this host, by the numbers of their sessions."""
        self._session, self._clients = session, clients
        self._turn, self._process = threading.Lock(), os.getpid()
        weakref.finalize(self, session.abandon)  # between all-reduces nothing is in flight

    def all_reduce(self, gloo: Any, timeout: float, tensor: torch.Tensor, op: str = "SUM") -> Optional[torch.Tensor]:
        """The sum of the ranks' tensors, coalesced and on the CPU; None if Libra does not support the operation. ``gloo`` is a group of all ranks,
        ``timeout`` is its, in seconds.

        It sums float32 tensors with a single sparse dimension, the first. A tensor without rows may have any number of sparse
        dimensions: a rank whose batch is empty may not know which layout the others have. All ranks get the same
        bits: each value is the float32 nearest to the exact sum over the ranks' coalesced tensors, in a job without an optimiser;
        with one, gradients are first rounded to the job's unit, 2^-46. Rows whose sums are all zero are left out.

        Raises :class:`Mismatch` on all ranks if their tensors do not match; on a rank with a gradient that is NaN or infinite (or
        out of the range of a job with an optimiser), :class:`libra.NotFinite` (:class:`libra.OutOfRange`), and
        :class:`libra.StepDropped` on the others; on all ranks :class:`libra.StepDropped` if a sum is too large for a float32. These
        may continue with the next step. ``key`` of these is the row of the tensor, ``index`` the gradient's place in its values. Raises
        :class:`libra.PartyGone` if a rank has ended, and TimeoutError if not all ranks arrive within the group's timeout;
        afterwards no all-reduce is possible.
        """
        try:
            return self._all_reduce(gloo, timeout, tensor, tensor.sparse_dim(), op)
        except Mismatch as e:
            if e._layout is None or not _kind(tensor.shape, e._layout, tensor.dtype, op, self._session.dim, gloo.size()).ours:
                raise
            return self._all_reduce(gloo, timeout, tensor, e._layout, op)  # as do all ranks

    def _all_reduce(self, gloo: Any, timeout: float, tensor: torch.Tensor, sparse: int, op: str) -> Optional[torch.Tensor]:
        """all_reduce of a tensor that counts as one with this number of sparse dimensions."""
        kind = _kind(tensor.shape, sparse, tensor.dtype, op, self._session.dim, gloo.size())
        empty = tensor._nnz() == 0
        mine = np.empty(0, np.int64), np.empty((0, kind.width), np.float32)
        if kind.ours and not empty:
            mine = _ordered(tensor, kind.width)
            first, last = mine[0][0], mine[0][-1]
            if first < 0 or last >= tensor.shape[0]:  # PyTorch does not look where a gradient is
                return self._all_reduce(gloo, timeout, tensor, sparse, f"{op}, with an index {first if first < 0 else last} outside of the shape")
        index, rows = self._sums(gloo, timeout, kind, *mine, empty)
        if not kind.ours:
            return None
        if len(index) and not 0 <= index[-1] < tensor.shape[0]:  # the largest; beyond int64 it wraps to a negative number
            raise Error(f"a step of {tensor.shape[0]} rows has one beyond them: no other program may take part in the job")
        return coalesced(torch.from_numpy(index[None]), torch.from_numpy(rows.reshape(-1, *tensor.shape[1:])), tensor.shape)

    def begin(self, gloo: Any, timeout: float) -> None:
        """Takes an empty step, so that problems show before the first tensor."""
        nothing = _kind(torch.Size([0, 0]), 1, torch.float32, "begin", self._session.dim, gloo.size()), np.empty(0, np.int64), np.empty((0, 0), np.float32)
        try:
            self._sums(gloo, timeout, *nothing)
        except StepDropped:  # on all ranks: the step still held what earlier ranks had pushed
            self._sums(gloo, timeout, *nothing)

    def is_forked(self) -> bool:
        """Whether this is a child of the process that opened the session, in which all-reduces raise :class:`libra.Forked`."""
        return os.getpid() != self._process

    def _sums(
        self, gloo: Any, timeout: float, kind: _Kind, index: np.ndarray, rows: np.ndarray, empty: bool = False
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Index, int64[n], ascending, and sums, float32[n, width], of all ranks' rows, if all ranks agree on the kind."""
        session, n = self._session, len(kind.seal)
        keys = np.empty(n + len(index) * kind.chunks, np.uint64)
        values = (np.zeros if kind.width % session.dim else np.empty)((len(keys), session.dim), np.float32)
        keys[:n], values[:n] = kind.keys, kind.seal
        np.add(_split(index, rows, kind.chunks, values[n:]), n, out=keys[n:].view(np.int64))
        try:
            keys, values = self._reduce(keys, values, timeout, Watch(gloo))
        except TimeoutError as e:
            raise TimeoutError(f"not all ranks came to the all-reduce of a tensor of {kind.text}: {e}") from e
        except (NotFinite, OutOfRange, Refused, StepDropped) as e:
            where = ""  # ranks know rows and values of their tensor, not keys and numbers of what is pushed
            if e.key is not None and e.key >= n:
                e.key = (e.key - n) // kind.chunks
                where = f", which is row {e.key} of the tensor"
            if e.index is not None:
                row, column = divmod(e.index - n * session.dim, kind.chunks * session.dim)
                e.index = row * kind.width + column
                where += f", number {e.index} of its values"
            e.args = (f"{e}{where}",)
            raise
        if not kind.is_agreed(keys, values):
            programs, ranks = values[0, 0] if len(keys) and keys[0] == 0 else 0, gloo.size()
            if programs != ranks:
                raise Error(f"{programs:.0f} programs took part in a step, and there are {ranks} ranks: no other program may take part in the job")
            all_ = [text.split(" ", 2) for text in gather(gloo, f"{kind.sparse} {'empty' if empty else 'rows'} {kind.text}")]
            kinds = "; ".join(f"rank {rank}: {text}" for rank, (_, _, text) in enumerate(all_))
            mismatch = Mismatch(f"the ranks' tensors do not match: {kinds}")
            with_rows = {sparse for sparse, has, _ in all_ if has == "rows"}
            if len({text.replace(f" {sparse} of", "") for sparse, _, text in all_}) == 1 and with_rows <= {"1"}:
                mismatch._layout = 1  # the only one that Libra sums
            raise mismatch
        keys, values = keys[kind.agreed :].view(np.int64), values[kind.agreed :]
        keys -= n
        return _join(keys, values, kind.chunks, kind.width)

    def _reduce(self, keys: np.ndarray, values: np.ndarray, timeout: float, watch: Watch) -> Tuple[np.ndarray, np.ndarray]:
        """Takes a step, one thread at a time. In a forked child the lock may be held for ever, so the session reports the error instead."""
        with contextlib.nullcontext() if self.is_forked() else self._turn:
            try:
                return self._session.reduce(keys, values, timeout=timeout, look=watch)
            except PartyGone as e:
                self._end()
                if e.client in self._clients:
                    e.args = (ended_text([self._clients[e.client]], str(e)),)
                raise
            except Error:
                raise
            except BaseException:  # not in time, Ctrl-C, what a signal's handler raises: the step goes on, and this rank alone would miss its sums
                self._end()
                raise

    def _end(self) -> None:
        """Ends the session, so that a new one can be opened with the next group, also while the caller keeps an exception, and so this."""
        self._session.abandon()
        if _connected.get(self._process) is self:
            del _connected[self._process]


def _ordered(tensor: torch.Tensor, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """Index, int64[n], ascending, and rows, float32[n, width], of the tensor, whose first dimension alone is sparse."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    tensor = tensor.cpu()
    index = tensor._indices().numpy()[0]
    if not (index[1:] > index[:-1]).all():  # coalesce would sort even an ascending index
        tensor = tensor.coalesce()
        index = tensor._indices().numpy()[0]
    return index, tensor._values().numpy().reshape(-1, width)


def _split(index: np.ndarray, rows: np.ndarray, chunks: int, into: np.ndarray) -> np.ndarray:
    """Copies rows, float32[n, width], into rows of a job, float32[n * chunks, dim] of zeros, and returns their keys, int64[n * chunks]:
    floats i * dim to (i + 1) * dim of the row at index have key index * chunks + i."""
    into.reshape(len(rows), chunks * into.shape[1])[:, : rows.shape[1]] = rows
    return index if chunks == 1 else (index[:, None] * chunks + np.arange(chunks)).reshape(-1)


def _join(keys: np.ndarray, values: np.ndarray, chunks: int, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """The inverse of _split: index, int64[n], ascending, and rows, float32[n, width]. Missing keys become zeros."""
    if chunks == 1:
        return keys, np.ascontiguousarray(values[:, :width])
    owner = keys // chunks
    first = np.ones(len(keys), bool)  # of its row
    first[1:] = owner[1:] != owner[:-1]
    rows = np.zeros((np.count_nonzero(first), chunks, values.shape[1]), np.float32)
    rows[np.cumsum(first) - 1, keys - owner * chunks] = values
    return owner[first], np.ascontiguousarray(rows.reshape(len(rows), chunks * values.shape[1])[:, :width])


# Only one session per process may take part in the steps of a job, so all groups share it.
_connected: "weakref.WeakValueDictionary[int, Rows]" = weakref.WeakValueDictionary()


def connect(gloo: Any, timeout: float) -> Rows:
    """The Rows of a group of all ranks, which is ``gloo``. ``timeout`` of the first, empty all-reduce is in seconds.

    If a rank cannot open its session, or if the sessions do not match, all ranks raise the reason.
    """
    shared = _connected.get(os.getpid())
    if shared is not None:
        return shared
    session, failure = _open(gloo.rank())
    reports = gather(gloo, _report(session, failure))
    if any(_STALE in report for report in reports):  # all ranks see it
        if session is not None:
            failure = _end_step(session, timeout)
        end = time.monotonic() + min(timeout, _STALE_LIMIT)
        while _STALE in str(failure) and time.monotonic() < end:
            time.sleep(0.05)
            session, failure = _open(gloo.rank())
        reports = gather(gloo, _report(session, failure))
    if failure is not None:
        raise failure
    assert session is not None
    try:
        members = enumerate(_check(reports))
        rows = Rows(session, {m["client"]: rank for rank, m in members if m["agent"] == session.info.instance})
        rows.begin(gloo, timeout)
    except Exception as e:
        session.abandon()
        if isinstance(e, Error) and e.name == "MODE":
            raise ValueError("the job does not take steps together: set job.sync in its cluster file, or give libra run --sync") from e
        raise
    _connected[os.getpid()] = rows
    return rows


# What an agent says whose ranks have ended while they waited for other hosts: those have to end that step before new ranks can come.
# This happens when all ranks are started anew because one was killed.
_STALE = "the previous parties have ended, but this host still waits for the other hosts"
_STALE_LIMIT = 60.0  # seconds; the step ends when its messages have come


def _end_step(session: Session, timeout: float) -> Optional[Exception]:
    """Ends the step of earlier ranks, whatever they had pushed. Returns what went wrong."""
    try:
        session.reduce(np.empty(0, np.uint64), np.empty((0, session.dim), np.float32), timeout=timeout)
    except StepDropped:
        pass
    except (Error, TimeoutError) as e:
        session.abandon()
        return e
    return None


def _open(rank: int) -> Tuple[Optional[Session], Optional[Exception]]:
    """A session with the agent of this host, or why there is none."""
    try:
        return _session(rank), None
    except (Error, OSError, ValueError) as e:
        return None, e


def _session(rank: int) -> Session:
    job, parties = os.environ.get("LIBRA_JOB", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not job:
        raise ValueError("LIBRA_JOB is not set: give it the job's name in the configuration of this host's agent, as libra run does")
    if not parties.isdecimal() or int(parties) < 1:
        raise ValueError(f"LOCAL_WORLD_SIZE is {parties!r}: give it the number of ranks on this host, as torchrun and libra run do")
    return Session(job, parties=int(parties), client=f"rank {rank}")


def _report(session: Optional[Session], failure: Optional[Exception]) -> str:
    """What each rank reports to all others."""
    if session is None or failure is not None:
        return f"{_FAILURE}{failure}"
    info = session.info
    member = {"agent": info.instance, "client": info.client, "parties": int(os.environ["LOCAL_WORLD_SIZE"])}
    return json.dumps({**member, "job": info.job, "dim": info.dim, "arithmetic": info.arithmetic, "exponent": info.exponent})


# What a rank without a session reports begins with this, and then has the reason, which may be long: gather cuts it.
_FAILURE = "failure: "


def _check(reports: List[str]) -> List[Dict[str, Any]]:
    """Returns what the ranks report. Raises ValueError if all-reduces are not possible: all ranks have the same reports, so all raise the same."""
    for rank, report in enumerate(reports):
        if report.startswith(_FAILURE):
            raise ValueError(f"rank {rank} has no session: {report[len(_FAILURE):]}")
    members = [json.loads(report) for report in reports]
    for rank, m in enumerate(members):
        if m["arithmetic"] != "exact":
            raise ValueError(f"the job adds in arithmetic {m['arithmetic']}: all-reduces need one in arithmetic exact")
        if m["exponent"] > 0 or len(members) * 15**2 >= 2.0 ** (63 + m["exponent"]):
            raise ValueError(
                f"the job adds units of 2^{m['exponent']} to less than 2^{63 + m['exponent']}: all-reduces of {len(members)} ranks need "
                f"units of 2^{(len(members) * 15**2).bit_length() - 63} to 2^0 (job.exponent)"
            )
        here = sum(other["agent"] == m["agent"] for other in members)
        if here != m["parties"]:
            raise ValueError(f"rank {rank} has LOCAL_WORLD_SIZE {m['parties']}, but {here} ranks use its agent")
        for what in "job", "dim":
            if m[what] != members[0][what]:
                raise ValueError(f"rank {rank} is in a job of {what} {m[what]}, rank 0 in one of {what} {members[0][what]}: give all ranks the same job")
    return members


def gather(gloo: Any, text: str) -> List[str]:
    """The texts of all ranks, each truncated to 1,000 bytes."""
    mine = torch.zeros(1000, dtype=torch.uint8, device="cpu")
    data = text.encode()[: len(mine)]
    mine[: len(data)] = torch.tensor(list(data), dtype=torch.uint8, device="cpu")
    all_ = [torch.zeros_like(mine) for _ in range(gloo.size())]
    gloo.allgather([all_], [mine]).wait()
    return [bytes(t.tolist()).rstrip(b"\0").decode("utf-8", "replace") for t in all_]
