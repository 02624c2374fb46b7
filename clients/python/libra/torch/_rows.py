# SPDX-License-Identifier: Apache-2.0
"""All-reduces of sparse tensors by the steps of a job."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import weakref
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

from .._errors import Error
from .._session import Session
from ._compat import coalesced


class Mismatch(ValueError):
    """The ranks called all_reduce with tensors of different shapes or types. All of them get this error."""


# A step's sums tell whether all ranks gave the same kind of tensor. Each rank adds a 1, the digits of a hash of its kind,
# and their squares. If both sums of a digit are those of ranks that all have it, all have it: their mean is the digit, and their variance is zero.
# Sums of a job are less than 2^17: digits of 4 bits leave room for them.
_DIGITS = 16
_MOST_RANKS = (1 << 17) // 15**2


@functools.lru_cache(maxsize=64)
def _seal(kind: str, dim: int) -> np.ndarray:
    """float32[n, dim]: the rows that a rank adds, so that the sums tell whether all ranks have this kind."""
    digest = hashlib.blake2b(kind.encode(), digest_size=_DIGITS // 2).digest()
    digits = np.array([d for byte in digest for d in (byte >> 4, byte & 15)], np.float32)
    seal = np.concatenate([np.ones(1, np.float32), digits, digits**2])
    return np.pad(seal, (0, -len(seal) % dim)).reshape(-1, dim)


@functools.lru_cache(maxsize=64)
def _agreed(kind: str, dim: int, ranks: int) -> Tuple[np.ndarray, np.ndarray]:
    """The keys and the sums of the seals of ranks that all have this kind; rows of zeros are left out of sums."""
    sums = _seal(kind, dim) * np.float32(ranks)
    keys = np.flatnonzero(sums.any(axis=1))
    return keys, sums[keys]


class Rows:
    """Adds the sparse tensors of all ranks up. :func:`connect` makes one; it ends with its last reference."""

    def __init__(self, session: Session, timeout: float) -> None:
        self._session, self._timeout = session, timeout
        weakref.finalize(self, session.abandon)  # between all-reduces nothing is on its way

    def all_reduce(self, gloo: Any, tensor: torch.Tensor, op: str = "SUM") -> Optional[torch.Tensor]:
        """The sum of the ranks' tensors, coalesced and on the CPU; None if it is not for Libra to make. ``gloo`` is a group of all ranks.

        It makes sums of float32 whose first dimension alone is sparse. All ranks get the same bits, each float32 the
        nearest to the exact sum of what the ranks' coalesced tensors hold. Rows whose sums are all zero are left out.

        Raises :class:`Mismatch` on all ranks if their tensors do not fit together; on a rank with a gradient that is NaN or out of range,
        :class:`libra.NotFinite` or :class:`libra.OutOfRange`, and :class:`libra.StepDropped` on the others: they may go on with the next
        step. Raises TimeoutError when not all ranks have come in the group's time; no all-reduce is then possible any more.
        """
        dim = self._session.dim
        width = math.prod(tensor.shape[1:])  # floats of a row of the tensor
        chunks = max(1, -(-width // dim))  # rows of the job that it takes
        ours = op == "SUM" and tensor.dtype == torch.float32 and tensor.sparse_dim() == 1 and width > 0 and tensor.shape[0] * chunks < 1 << 62
        index, rows = np.empty(0, np.int64), np.empty((0, width), np.float32)
        if ours:
            tensor = _ordered(tensor.detach().cpu())
            index, rows = tensor._indices()[0].numpy(), tensor._values().reshape(-1, width).numpy()
        kind = f"shape {list(tensor.shape)}, {tensor.sparse_dim()} of its dimensions sparse, {tensor.dtype}, {op}"
        index, rows = self._sums(gloo, index, rows, chunks, kind)
        if not ours:
            return None
        if len(index) and int(index.view(np.uint64).max()) >= tensor.shape[0]:  # a negative one is a large one, too
            raise Error(f"a step of {tensor.shape[0]} rows has one beyond them: the job must be the ranks' alone")
        return coalesced(torch.from_numpy(index[None]), torch.from_numpy(rows.reshape(-1, *tensor.shape[1:])), tensor.shape)

    def _sums(self, gloo: Any, index: np.ndarray, rows: np.ndarray, chunks: int, kind: str) -> Tuple[np.ndarray, np.ndarray]:
        """Index, ascending, and sums of all ranks' rows, float32[n, width], if all ranks have the same kind."""
        session, width = self._session, rows.shape[1]
        seal = _seal(kind, session.dim)
        n = len(seal)  # its rows have the least keys: keys far apart cost more
        values = np.zeros((n + len(index) * chunks, session.dim), np.float32)
        values[:n] = seal
        keys = np.arange(len(values), dtype=np.int64)
        np.add(_split(index, rows, chunks, values[n:]), n, out=keys[n:])
        try:
            keys, values = session.reduce(keys.view(np.uint64), values, timeout=self._timeout)
        except TimeoutError as e:
            session.abandon()  # the step is still under way
            raise TimeoutError(f"not all ranks came to the all-reduce of a tensor of {kind} in {self._timeout} s") from e
        keys = keys.view(np.int64)
        first, ranks = int(np.searchsorted(keys, n)), gloo.size()
        agreed = _agreed(kind, session.dim, ranks)
        if not (np.array_equal(keys[:first], agreed[0]) and np.array_equal(values[:first], agreed[1])):
            programs = values[0, 0] if first > 0 and keys[0] == 0 else 0
            if programs != ranks:
                raise Error(f"{programs:.0f} programs took part in a step, and there are {ranks} ranks: the job must be theirs alone")
            kinds = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(gather(gloo, kind)))
            raise Mismatch(f"the ranks' tensors do not fit together: {kinds}")
        keys, values = keys[first:], values[first:]
        keys -= n
        return _join(keys, values, chunks, width)


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, coalesced unless the rows of its first dimension, which alone is sparse, ascend already: PyTorch sorts them without a look."""
    index = tensor._indices()[0].numpy()
    return tensor if bool((index[1:] > index[:-1]).all()) else tensor.coalesce()


def _split(index: np.ndarray, rows: np.ndarray, chunks: int, into: np.ndarray) -> np.ndarray:
    """Copies rows, float32[n, width], into rows of a job, float32[n * chunks, dim] of zeros, and returns their keys, int64[n * chunks]:
    floats i * dim to (i + 1) * dim of the row at index have key index * chunks + i."""
    into.reshape(len(rows), chunks * into.shape[1])[:, : rows.shape[1]] = rows
    return index if chunks == 1 else (index[:, None] * chunks + np.arange(chunks)).reshape(-1)


def _join(keys: np.ndarray, values: np.ndarray, chunks: int, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """The inverse of _split: index, int64[n], ascending, and rows, float32[n, width]. A key that is missing has zeros."""
    if chunks == 1:
        return keys, np.ascontiguousarray(values[:, :width])
    owner = keys // chunks
    first = np.ones(len(keys), bool)  # of its row
    first[1:] = owner[1:] != owner[:-1]
    rows = np.zeros((np.count_nonzero(first), chunks, values.shape[1]), np.float32)
    rows[np.cumsum(first) - 1, keys - owner * chunks] = values
    return owner[first], np.ascontiguousarray(rows.reshape(len(rows), chunks * values.shape[1])[:, :width])


# Only one session of a process may take part in the steps of a job, so all groups share it.
_connected: "weakref.WeakValueDictionary[int, Rows]" = weakref.WeakValueDictionary()


def connect(gloo: Any, timeout: float) -> Rows:
    """The Rows of a group of all ranks, which is ``gloo``. ``timeout`` of an all-reduce is in seconds.

    If a rank cannot open its session, or if they do not fit together, all ranks raise why.
    """
    shared = _connected.get(os.getpid())
    if shared is not None:
        return shared
    session, failure = None, None
    try:
        session = _open(gloo.rank())
    except (Error, OSError, ValueError) as e:
        failure = e
    members = gather(gloo, json.dumps({"failure": str(failure)} if session is None else _member(session)))
    if failure is not None:
        raise failure
    assert session is not None
    try:
        _check([json.loads(member) for member in members])
        rows = Rows(session, timeout)
        rows._sums(gloo, np.empty(0, np.int64), np.empty((0, session.dim), np.float32), 1, "begin")
    except Exception as e:
        session.abandon()
        if isinstance(e, Error) and e.name == "MODE":
            raise ValueError("the job does not take steps together: set job.sync in its cluster file, or give libra run --sync") from e
        raise
    _connected[os.getpid()] = rows
    return rows


def _open(rank: int) -> Session:
    job, parties = os.environ.get("LIBRA_JOB", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if not job:
        raise ValueError("LIBRA_JOB is not set: give it the job's name in the configuration of this host's agent, as libra run does")
    if not parties.isdecimal() or int(parties) < 1:
        raise ValueError(f"LOCAL_WORLD_SIZE is {parties!r}: give it the number of ranks on this host, as torchrun and libra run do")
    return Session(job, parties=int(parties), client=f"rank {rank}")


def _member(session: Session) -> Dict[str, Any]:
    """What all ranks learn of each."""
    info = session.info
    return {"agent": info.instance, "parties": int(os.environ["LOCAL_WORLD_SIZE"]), "job": info.job, "dim": info.dim, "arithmetic": info.arithmetic}


def _check(members: List[Dict[str, Any]]) -> None:
    """Raises ValueError if all-reduces are not possible. All ranks have the same members, so all raise the same."""
    if len(members) > _MOST_RANKS:
        raise ValueError(f"there are {len(members)} ranks: at most {_MOST_RANKS} are possible")
    for rank, m in enumerate(members):
        if "failure" in m:
            raise ValueError(f"rank {rank} has no session: {m['failure']}")
    for rank, m in enumerate(members):
        if m["arithmetic"] != "exact":
            raise ValueError(f"the job adds in arithmetic {m['arithmetic']}: all-reduces need one in arithmetic exact")
        here = sum(other["agent"] == m["agent"] for other in members)
        if here != m["parties"]:
            raise ValueError(f"rank {rank} has LOCAL_WORLD_SIZE {m['parties']}, but {here} ranks use its agent")
        for what in "job", "dim":
            if m[what] != members[0][what]:
                raise ValueError(f"rank {rank} is in a job of {what} {m[what]}, rank 0 in one of {what} {members[0][what]}: give all ranks the same job")


def gather(gloo: Any, text: str) -> List[str]:
    """The texts of all ranks; of each its first 1,000 bytes."""
    mine = torch.zeros(1000, dtype=torch.uint8)
    data = text.encode()[: len(mine)]
    mine[: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    all_ = [torch.zeros_like(mine) for _ in range(gloo.size())]
    gloo.allgather([all_], [mine]).wait()
    return [bytes(t.tolist()).rstrip(b"\0").decode("utf-8", "replace") for t in all_]
