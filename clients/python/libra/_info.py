# SPDX-License-Identifier: Apache-2.0
"""What a session says of its job and of itself."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Info:
    """The job, and what the agent granted the session."""

    dim: int  #: floats of a row
    mode: str  #: "combine", "fetchadd" or "sync"
    arithmetic: str  #: "exact", "lut" or "fixed"
    exponent: int  #: one unit of an exact or fixed sum is 2**exponent
    hot_rows: int  #: rows in the hot set
    hot_set: bytes  #: its SHA-256
    job: int  #: number of the job on the wire
    client: int  #: number of this client in the agent's logs
    agent_pid: int  #: in the agent's own PID namespace
    entries: int  #: requests that may be in flight
    buffer_bytes: int  #: for requests in flight and :meth:`Session.empty`
    prepared_bytes: int  #: limit of all prepared batches together
    instance: int  #: random number of this run of the agent


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Counters of a session; those with the prefix ``job_`` belong to the job on this host."""

    pushes_accepted: int
    pushes_acknowledged: int
    pushes_failed: int
    keys_pushed: int
    pulls: int
    keys_pulled: int
    bytes_read: int
    prepared_bytes: int
    wakes_of_agent: int
    wakes_of_client: int
    job_frames_sent: int
    job_frames_repeated: int
    job_aggregator_rtt_ns: int
    job_server_rtt_ns: int
    step_arrived: int  #: parties of this host that have arrived at the end of the current step
    step_parties: int  #: their total; if all have arrived, the host waits for other hosts
