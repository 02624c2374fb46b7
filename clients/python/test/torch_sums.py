# SPDX-License-Identifier: Apache-2.0
"""A property test of sums: each is the float32 nearest to the exact sum of what the ranks gave, compared bit for bit with rational arithmetic.

All ranks draw what each of them gives: magnitudes from the smallest to the largest of float32, values that cancel one another, and
halves of units in the last place. Row i of a tensor has key SEAL + i, of which libra run makes the first ones hot.
"""

import faulthandler
import random
import struct
from fractions import Fraction

import torch
import torch.distributed as dist

import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever

STEPS, ROWS, DIM = 40, 64, 4
LARGEST = Fraction(2) ** 128 - Fraction(2) ** 104  # that is a float32
dist.init_process_group("libra")
rank, ranks = dist.get_rank(), dist.get_world_size()


def nearest(x):
    """The bits of the float32 nearest to a Fraction, the even one of two; None if it has none. A sum of zero is positive."""
    size = abs(x)
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, -127)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** max(exponent - 23, -149)
    units = size / unit
    whole, rest = divmod(units, 1)
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    if whole * unit > LARGEST:
        return None
    return struct.unpack("<I", struct.pack("<f", float(whole * unit) * (-1 if x < 0 else 1)))[0]


def number(draw, low, high):
    """A float32 whose magnitude is 2^low to 2^(high + 1)."""
    exponent = draw.randint(low, high)
    bits = min(23, exponent + 149)
    whole = (1 << bits) + draw.choice([0, 1, (1 << bits) - 1, draw.getrandbits(bits) if bits else 0])
    return draw.choice([-1, 1]) * Fraction(whole) * Fraction(2) ** (exponent - bits)


def gradient(draw, kind):
    """What each rank gives of a value."""
    low, high = {"all": (-149, 123), "small": (-149, -100), "large": (100, 123), "usual": (-30, 3), "units": (-23, -23), "edge": (127, 127)}[kind]
    given = [number(draw, low, high) for _ in range(ranks)]
    how = draw.randrange(5)
    if how == 0:  # what is left of two that cancel each other
        given[1] = -given[0]
    elif how == 1:  # half a unit in the last place, and perhaps a little more
        given = [abs(given[0])] + [Fraction(0)] * (ranks - 1)
        exponent = given[0].numerator.bit_length() - given[0].denominator.bit_length()
        given[1] = Fraction(2) ** max(exponent - 24 - draw.randrange(2), -149)
        if ranks > 2:
            given[2] = draw.choice([-1, 0, 1]) * Fraction(2) ** -149
    elif how == 2:  # nothing from most
        given = [g if draw.random() < 0.3 else Fraction(0) for g in given]
    draw.shuffle(given)
    return given


draw, exact, refused = random.Random(ranks), 0, 0
for step in range(STEPS):
    kinds = ["all", "small", "large", "usual", "units"] if step % 8 < 7 else ["edge", "usual"]
    rows = {}
    for row in sorted(draw.sample(range(ROWS), draw.randint(1, 24))):  # of which the first 31 are hot
        kind = draw.choice(kinds)
        rows[row] = [gradient(draw, kind) for _ in range(DIM)]
    # A row that a rank does not give is left out of what it gives, or is zeros there.
    mine = [row for row, values in rows.items() if any(v[rank] for v in values) or (row + rank) % 2]
    values = torch.tensor([[float(v[rank]) for v in rows[row]] for row in mine], dtype=torch.float32).reshape(-1, DIM)
    tensor = torch.sparse_coo_tensor(torch.tensor([mine], dtype=torch.int64), values, (ROWS, DIM), dtype=torch.float32)
    want = {row: [nearest(sum(v)) for v in values] for row, values in rows.items()}
    if any(None in bits for bits in want.values()):
        try:
            dist.all_reduce(tensor)
        except libra.StepDropped as e:
            assert "too large for a float32" in str(e), e
            assert None in want[e.key], (step, e, want[e.key])
            refused += 1
            continue
        raise SystemExit(f"step {step} has a sum that no float32 has, and was not refused")
    dist.all_reduce(tensor)
    tensor = tensor.coalesce()
    got = dict(zip(tensor.indices()[0].tolist(), tensor.values().numpy().view("uint32").tolist()))
    for row, bits in want.items():
        if any(bits) or row in got:
            assert got.get(row) == bits, (step, row, rows[row], got.get(row), bits)
            exact += len(bits)
    assert set(got) <= set(want), (step, got, want)
dist.destroy_process_group()
if rank == 0:
    print(f"rank 0 of {ranks}: {exact} sums exact, {refused} refused", flush=True)
