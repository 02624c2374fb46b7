# SPDX-License-Identifier: Apache-2.0
"""Push gradients to Libra, and pull rows, from Python.

A host runs one Libra agent. A :class:`Session` reaches it through shared memory::

    import libra

    with libra.Session("clicks") as session:
        rows = session.pull(keys)               # float32[n, dim]
        session.push(keys, gradients)           # returns when the arrays are free again
        session.flush()                         # all pushes are acknowledged

Everything that fails raises :class:`Error` or a class of it, with the text of the C library. The
package needs NumPy and ``libra.so.1``, which a wheel of it has.
"""

from ._errors import (
    AgentClosed,
    AgentDied,
    AgentNotFound,
    Error,
    Forked,
    JobEnded,
    JobNotOpen,
    Malformed,
    NoServer,
    NotAllowed,
    NotFinite,
    NoWeights,
    OutOfRange,
    PartyGone,
    Refused,
    SessionClosed,
    StepDropped,
    TooLarge,
)
from ._info import Info, Statistics
from ._library import LibraryNotFound, version
from ._session import Session
from ._ticket import Batch, Ticket
from ._version import VERSION as __version__

__all__ = [
    "AgentClosed",
    "AgentDied",
    "AgentNotFound",
    "Batch",
    "Error",
    "Forked",
    "Info",
    "JobEnded",
    "JobNotOpen",
    "LibraryNotFound",
    "Malformed",
    "NoServer",
    "NoWeights",
    "NotAllowed",
    "NotFinite",
    "OutOfRange",
    "PartyGone",
    "Refused",
    "Session",
    "SessionClosed",
    "Statistics",
    "StepDropped",
    "Ticket",
    "TooLarge",
    "__version__",
    "version",
]
