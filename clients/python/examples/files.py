# SPDX-License-Identifier: Apache-2.0
"""Reads the data files of the examples, gzipped or not. A ValueError names what is wrong with one, and what it must be."""
import gzip
import math
import zlib

import torch


def content(path, kind):
    """The bytes of a file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except gzip.BadGzipFile as e:
        raise ValueError(f"{path} is cut short or damaged ({e}): get the file again") from None
    except OSError as e:
        raise ValueError(f"{path} cannot be read ({e.strerror or e}): give the path of {kind}") from None
    except (EOFError, zlib.error) as e:
        raise ValueError(f"{path} is cut short or damaged ({e}): get the file again") from None


def lines(path, kind):
    """The lines of a text file that are not empty."""
    try:
        text = content(path, kind).decode()
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is no text ({e}): give {kind}") from None
    found = [line for line in text.split("\n") if line.strip()]
    if not found:
        raise ValueError(f"{path} is empty: give {kind}")
    return found


def libfm(path, rows, least=1):
    """The first rows of a libFM file: features, int64[n, fields], and labels, float32[n], 0 or 1. All rows have as many features, of value 1."""
    many = f"at least {least}, " if least > 1 else ""
    kind = f"a libFM file, each line a label and as many features as the others, {many}of value 1, as in '-1 266:1 1244:1'"
    labels, features = [], []
    for number, line in enumerate(lines(path, kind)[:rows], 1):
        label, *words = line.split()
        try:
            labels.append(float(label) > 0)
            features.append([int(word[:-2]) for word in words if word.endswith(":1")])
        except ValueError:
            features.append([])
        row = features[-1]
        if not least <= len(words) == len(row) == len(features[0]) or not 0 <= min(row) <= max(row) < 1 << 31:
            raise ValueError(f"{path}, line {number}, '{line[:60]}' cannot be used: give {kind}")
    return torch.tensor(features), torch.tensor(labels, dtype=torch.float32)


def idx(path, *shape):
    """The bytes of an IDX file, uint8[n, *shape]."""
    data, sizes = content(path, f"an IDX file, {of(shape)}"), 1 + len(shape)
    head = data[: 4 + 4 * sizes]
    found = [int.from_bytes(head[i : i + 4], "big") for i in range(4, len(head), 4)]
    if head[:4] != bytes([0, 0, 8, sizes]) or found[1:] != list(shape) or found[0] == 0:
        raise ValueError(f"{path} cannot be used: give an IDX file, {of(shape)}")
    if len(data) - len(head) != math.prod(found):
        raise ValueError(f"{path} is cut short or damaged ({len(data) - len(head)} bytes of {math.prod(found)}): get the file again")
    return torch.frombuffer(bytearray(data[len(head) :]), dtype=torch.uint8).view(found)


def of(shape):
    return "of bytes, one each" if not shape else f"of images of {' × '.join(map(str, shape))} bytes"


def text(path, words):
    """The first words of a text, with the ends of its lines as words of their own."""
    kind = "a text in UTF-8, with spaces between words"
    found = [word for line in lines(path, kind) for word in [*line.split(), "<eos>"]][:words]
    if 2 * sum(any(c.isalpha() for c in word) for word in found) < len(found):
        raise ValueError(f"{path} is no text, most of its words, such as {found[:3]}, have no letters: give {kind}")
    return found
