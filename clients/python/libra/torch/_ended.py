# SPDX-License-Identifier: Apache-2.0
"""Which ranks have ended, while others wait for them in a step. The agent of a host sees its own alone."""

from __future__ import annotations

from typing import Any, List

import torch

from .._errors import PartyGone

# A message that no rank takes. gloo sends it to no rank whose connection has ended; and raises.
_MESSAGE = torch.zeros(1, dtype=torch.uint8, device="cpu")  # not freed while gloo has it
_TAG = 0x6C696272

# Looks at ended ranks after which a step will not end any more: the sums of one that ended before they did may be on their way.
_LOOKS = 10


def ended(gloo: Any) -> List[int]:
    """The ranks of a group of gloo whose processes have ended, or have left the group."""
    ranks = []
    for rank in range(gloo.size()):
        if rank != gloo.rank():
            try:
                gloo.send([_MESSAGE], rank, _TAG)
            except RuntimeError:
                ranks.append(rank)
    return ranks


class Watch:
    """Looks for ranks of a group of gloo that have ended, each time that it is called during a step."""

    def __init__(self, gloo: Any) -> None:
        self._gloo, self._looks = gloo, 0
        self._first: List[int] = []  # that have ended; others end since these have

    def __call__(self) -> None:
        """Raises PartyGone if the step waits for ranks that have ended."""
        self._first = self._first or ended(self._gloo)
        self._looks += bool(self._first)
        if self._looks > _LOOKS:
            e = PartyGone(ended_text(self._first, "this step needs all ranks: start all of them anew"))
            e.code, e.name = 38, "PARTY_GONE"
            raise e


def ended_text(ranks: List[int], text: str) -> str:
    """Says that these ranks have ended, and a text."""
    return f"rank {' and rank '.join(map(str, ranks))} {'have' if len(ranks) > 1 else 'has'} ended: {text}"
