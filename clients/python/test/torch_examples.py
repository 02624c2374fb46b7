# SPDX-License-Identifier: Apache-2.0
"""What the examples that train models refuse: both of two ranks end with the same text, which names the remedy."""
import contextlib
import gzip
import io
import os
import sys
import tempfile

import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples"))
import deeplight  # noqa: E402
import frappe  # noqa: E402
import frappe_server  # noqa: E402
import lstm  # noqa: E402
import mnist  # noqa: E402
import ncf  # noqa: E402

rank, folder, init = int(os.environ["RANK"]), os.environ["LIBRA_FOLDER"], dist.init_process_group
own = tempfile.mkdtemp()
ROWS = b"-1 1:1 20:1 30:1\n1 2:1 21:1 31:1\n" * 40
TEXT = b"the cat sat on the mat .\n" * 300
IMAGES = bytes([0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(range(196)) * 24
LABELS = bytes([0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 3, 4, 9])
FILES = {
    "rows": ROWS,
    "rows.gz": gzip.compress(ROWS),
    "text": TEXT,
    "cut.gz": gzip.compress(os.urandom(1000))[:500],
    "sum.gz": gzip.compress(TEXT)[:-8] + bytes(8),
    "images": IMAGES,
    "images.gz": gzip.compress(IMAGES),
    "labels": LABELS,
    "part": IMAGES[:-1],
    "more": IMAGES + b"\x00",
    "head": IMAGES[:7],
    "nothing": IMAGES[:4] + bytes(4) + IMAGES[8:16],
    "small": bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7]),
    "floats": bytes([0, 0, 13]) + IMAGES[3:],
    "five": bytes([0, 0, 8, 1, 0, 0, 0, 5]) + LABELS[8:13],
    "letters": LABELS[:-1] + b"\x0a",
    "binary": b"\x00\xff" * 100,
    "empty": b"\n",
    "ragged": b"1 1:1 2:1\n1 1:1\n",
    "values": b"1 1:0.5 2:1\n",
    "negative": b"1 1:1 -2:1\n",
    "label": b"yes 1:1 2:1\n",
    "huge": b"1 1:1 99999999999999999999:1\n",
    "user": b"1 1:1\n",
    "wide": b"1 1:1 2:1 3:1 4:1\n",
    "short": b"a b c\n",
    "ranks": ROWS * (1 + rank),
}
if rank == 0:
    FILES["mine"] = ROWS
for name, data in FILES.items():
    with open(os.path.join(own, name), "wb") as file:
        file.write(data)

LIBFM = ": give a libFM file, each line a label and as many features as the others, at least 2, of value 1, as in '-1 266:1 1244:1'"
AS = " cannot be used" + LIBFM
IDX = " cannot be used: give an IDX file, of images of 28 × 28 bytes"
UTF8 = ": give a text in UTF-8, with spaces between words"
CASES = [
    (ncf, "--data rows --test mine", "rank 1: OWN/mine cannot be read (No such file or directory): give the path of a libFM file, each line"),
    (ncf, "--data OWN --test rows", "OWN cannot be read (Is a directory): give the path of a libFM"),
    (ncf, "--data cut.gz --test rows", "cut.gz is cut short or damaged ("),
    (ncf, "--data binary --test rows", "binary is no text ("),
    (ncf, "--data empty --test rows", "empty is empty" + LIBFM),
    (ncf, "--data text --test rows", "text, line 1, 'the cat sat on the mat .'" + AS),
    (ncf, "--data rows --test ragged", "ragged, line 2, '1 1:1'" + AS),
    (ncf, "--data rows --test values", "values, line 1, '1 1:0.5 2:1'" + AS),
    (ncf, "--data rows --test negative", "negative, line 1, '1 1:1 -2:1'" + AS),
    (ncf, "--data rows --test label", "label, line 1, 'yes 1:1 2:1'" + AS),
    (ncf, "--data rows --test huge", "huge, line 1, '1 1:1 99999999999999999999:1'" + AS),
    (ncf, "--data rows --test user", "user, line 1, '1 1:1'" + AS),
    (ncf, "--data rows --test ranks", "rank 1: its data differ from those of rank 0: give all ranks the same"),
    (ncf, "--data rows --test rows --seed RANK", "rank 1: its options differ from those of rank 0: give all ranks the same"),
    (ncf, "--data rows --test rows --backend nccl", "there is no --backend nccl: give none, gloo, libra, or gloo,libra"),
    (ncf, "--data rows --test rows --backend none", "each of the 2 processes would train alone: give --backend gloo, libra or gloo,libra"),
    (ncf, "--data rows --test rows --backend libra", "LIBRA_JOB is not set: give it the job's name"),
    (ncf, "--data rows --test rows --batch 3", "--batch 3 is no multiple of 2, the number of ranks: give one that is"),
    (ncf, "--data rows --test rows --rate nan", "--rate nan is no learning rate: give a number above 0"),
    (ncf, "--data rows --test rows --accumulator -1", "--accumulator -1.0 is no sum of squares: give 0 or more"),
    (ncf, "--data rows --test rows --steps 0", "0 is too small: give 1 or more"),
    (ncf, "--data rows", "the following arguments are required: --test"),
    (deeplight, "--data rows --test wide", "rows of --data have 3 features, those of --test 4: give files of the same data set"),
    (deeplight, "--data rows --test rows --prune-deep 1", "1 is no share to prune: give a number from 0 on that is below 1"),
    (lstm, "--data rows", "rows is no text, most of its words, such as ['-1', '1:1', '20:1'], have no letters" + UTF8),
    (lstm, "--data binary", "binary is no text ("),
    (lstm, "--data short", "short has 4 words, too few: give a longer text, or a smaller --batch or --unroll"),
    (lstm, "--data sum.gz", "sum.gz is cut short or damaged (CRC check failed"),
    (lstm, "--data images", "images is no text ("),
    (frappe, "--data rows --test mine", "rank 1: OWN/mine cannot be read (No such file or directory): give the path of a libFM file, each line"),
    (frappe, "--data text --test rows", "text, line 1, 'the cat sat on the mat .'" + AS.replace(" at least 2,", "")),
    (frappe, "--data rows --test images.gz", "images.gz is no text ("),
    (frappe, "--data rows --test ranks", "rank 1: its data differ from those of rank 0: give all ranks the same"),
    (frappe, "--data rows --test rows --batch 0", "0 is too small: give 1 or more"),
    (frappe, "--data rows --test rows --loaders thread", "invalid choice: 'thread'"),
    (frappe_server, "--data cut.gz --test rows", "cut.gz is cut short or damaged ("),
    (frappe_server, "--data rows --test mine", "rank 1: OWN/mine cannot be read"),
    (mnist, "--images OWN --labels labels", "OWN cannot be read (Is a directory): give the path of an IDX file, of images of 28 × 28 bytes"),
    (mnist, "--images rows --labels labels", "rows" + IDX),
    (mnist, "--images head --labels labels", "head" + IDX),
    (mnist, "--images nothing --labels labels", "nothing" + IDX),
    (mnist, "--images small --labels labels", "small" + IDX),
    (mnist, "--images floats --labels labels", "floats" + IDX),
    (mnist, "--images labels --labels images", "labels" + IDX),
    (mnist, "--images images --labels images", "images cannot be used: give an IDX file, of bytes, one each"),
    (mnist, "--images part --labels labels", "part is cut short or damaged (4703 bytes of 4704): get the file again"),
    (mnist, "--images more --labels labels", "more is cut short or damaged (4705 bytes of 4704): get the file again"),
    (mnist, "--images cut.gz --labels labels", "cut.gz is cut short or damaged ("),
    (mnist, "--images images --labels five", "images has 6 images, OWN/five 5 labels: give files of the same data set"),
    (mnist, "--images images.gz --labels labels", "images.gz has 6 images, and some are to test with: give a smaller --train than 8000"),
    (mnist, "--images images --labels labels --train 6", "images has 6 images, and some are to test with: give a smaller --train than 6"),
    (mnist, "--images images --labels letters --train 4 --test 2", "letters has labels up to 10: give those of digits, 0 to 9"),
    (mnist, "--images images.gz --labels labels --train 4 --test 2 --batch 2 --epochs 1 --hooks none", None),
    (ncf, "--data rows.gz --test rows --batch 8 --steps 2 --factors 2", None),  # what is right
    (deeplight, "--data rows --test rows.gz --batch 8 --steps 2 --hidden 4 --warm-up 0 --every 1", None),
    (lstm, "--data text --batch 4 --steps 2 --hidden 4 --width 4 --sampled 3", None),
]
for case, (program, options, want) in enumerate(CASES):
    words = [f"{own}/{word}" if word in FILES or word == "mine" else word.replace("OWN", own).replace("RANK", str(rank)) for word in options.split()]
    backend = [] if "--backend" in words or program in (frappe_server, mnist) else ["gloo"] if program is frappe else ["--backend", "gloo"]
    sys.argv = [program.__name__, *words, *backend]
    # Ranks that meet again and again at one port might meet a store of before.
    dist.init_process_group = lambda backend: init(backend, store=dist.FileStore(f"{folder}/{case}", 2), rank=rank, world_size=2)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            program.main()
        error = None
    except (SystemExit, ValueError) as e:
        error = f"{said.getvalue()}{e}"
    right = error is None if want is None else error is not None and all(part in error for part in want.split("OWN"))
    assert right, f"{program.__name__} {options} ends with {error}, not {want}"
    assert not dist.is_initialized(), f"{program.__name__} {options} leaves its group"
print("all refused")
