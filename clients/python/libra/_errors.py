# SPDX-License-Identifier: Apache-2.0
"""Exceptions, built from the library's codes and texts."""

from __future__ import annotations

from typing import Optional

from ._library import library


class Error(Exception):
    """A call has failed. ``str()`` says what was wrong, where, and what to do."""

    #: Number of the code, as in libra.h.
    code: int = 0
    #: Its name, such as ``"NO_JOB"``.
    name: str = ""
    #: Index of the gradient that is not finite or out of range, counted from 0 over all rows, or of the malformed byte.
    index: Optional[int] = None
    #: The client that has ended, by the number that it has in ``info.client`` and the agent's log, if known.
    client: Optional[int] = None
    #: The key that caused the failure, if known.
    key: Optional[int] = None
    #: Who refused: ``"aggregator"``, ``"server"`` or None.
    peer: Optional[str] = None
    #: The code of the refusal on the wire.
    refusal: int = 0
    #: Frames of a failed push: applied, not applied, and unknown.
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0


class AgentNotFound(Error, ConnectionError):
    """No agent listens at the socket, or it may not be opened."""


class AgentDied(Error, ConnectionError):
    """The agent's process has died."""


class AgentClosed(Error, ConnectionError):
    """The agent was stopped."""


class JobEnded(Error, ConnectionError):
    """The agent's part in the job has ended."""


class NotAllowed(Error, PermissionError):
    """This user may not use the job."""


class Forked(Error, RuntimeError):
    """The session belongs to the parent of this process: open another one after the fork."""


class SessionClosed(Error, ValueError):
    """The session was closed."""


class NotFinite(Error, ValueError):
    """A gradient is NaN or infinite: ``index`` and ``key`` identify it."""


class OutOfRange(Error, ValueError):
    """A gradient is out of the range of the job's arithmetic: ``index`` and ``key`` identify it."""


class TooLarge(Error, ValueError):
    """A request cannot fit the session's buffers."""


class Refused(Error):
    """The aggregator or the server refused a frame, or this host could not meet the other hosts at the end of a step."""


class PartyGone(Error):
    """Another party of the barrier has ended: ``client``, if it was one of this host."""


class StepDropped(Error):
    """The step changed nothing: gradients in it were refused, see ``key``, a party ended in the middle of it, or a sum is too large for a float32."""


class NoWeights(Error):
    """The job has no optimiser, and so no weights to pull, only the sums of its steps."""


class JobNotOpen(Error, ConnectionError):
    """The agent could not open a job of a range: it may have no owner yet, or still the one before. Try again."""


class NoServer(Error):
    """The job has no parameter server: no pulls, and no rows outside the hot set, see ``key``."""


class Malformed(Error, ValueError):
    """Codes are not an encoding of the number of values that was asked for."""


_classes = {
    5: NotAllowed,
    11: JobEnded,
    13: JobNotOpen,
    32: NotFinite,
    33: OutOfRange,
    36: Refused,
    38: PartyGone,
    41: StepDropped,
    43: NoWeights,
    45: NoServer,
    64: AgentClosed,
    68: JobEnded,
    256: AgentNotFound,
    257: AgentDied,
    258: Forked,
    262: TooLarge,
    265: SessionClosed,
    266: Malformed,
}


def error(code: int) -> Error:
    """The exception for the last failure of this thread."""
    c = library().last_error().contents  # type: ignore[attr-defined]
    e = _classes.get(code, Error)(c.text.decode("utf-8", "replace"))
    e.code = code
    e.name = library().code_name(code).decode()  # type: ignore[attr-defined]
    if code in (32, 33, 266):
        e.index = c.index
    if isinstance(e, PartyGone):
        e.client = c.index or None
    if c.key_known:
        e.key = c.key
    e.peer = {1: "aggregator", 2: "server"}.get(c.peer)
    e.refusal, e.acknowledged, e.refused, e.unknown = c.refusal, c.acknowledged, c.refused, c.unknown
    return e


def check(code: int) -> None:
    """Raises the exception for a code, unless it is 0."""
    if code:
        raise error(code)


def closed() -> SessionClosed:
    e = SessionClosed("the session is closed")
    e.code, e.name = 265, "CLOSED"
    return e
