# SPDX-License-Identifier: Apache-2.0
"""Trains an LSTM language model with a sampled softmax (Jozefowicz et al., 2016): which word follows?

A step's gradients of both tables of words are sparse: of one they have the rows of the words read, of the other those
of the words that followed, and of others sampled beside them.

Run it as the ranks of libra run or torchrun, or alone. Rank 0 prints the perplexity of the last part of the text, which is
not trained on, a hash of the weights, which are the same on all ranks, the median time of a step, and what its host
sends in one.
"""
import math
from collections import Counter

import torch
import torch.distributed as dist
from files import text
from torch.nn.functional import cross_entropy
from training import agree, number, options, report, start, trainings, turns


class Model(torch.nn.Module):
    def __init__(self, words, width, hidden, layers, sampled):
        super().__init__()
        self.sampled = sampled
        self.read = torch.nn.Embedding(words, width, sparse=True)
        self.lstm = torch.nn.LSTM(width, hidden, layers)
        self.project = torch.nn.Linear(hidden, width - 1)
        self.predict = torch.nn.Embedding(words, width, sparse=True)  # weights of a word, and its bias
        for table in self.read, self.predict:
            torch.nn.init.normal_(table.weight, std=0.05)

    def states(self, words, state):
        """What the words read so far say on the next, float32[steps * columns, width]."""
        out, state = self.lstm(self.read(words), state)
        out = self.project(out).flatten(0, 1)
        return torch.cat([out, out.new_ones(len(out), 1)], 1), state

    def forward(self, words, state, sample):
        """The loss of words, int64[1 + steps, columns], if there were no others than those sampled, and the state after them."""
        out, state = self.states(words[:-1], state)
        after = words[1:].flatten()
        both, parts = torch.cat([after, sample]), [len(after), len(sample)]
        (right, others), (of_right, of_others) = self.predict(both).split(parts), self.likely(both).split(parts)
        wrong = (out @ others.T - of_others).masked_fill(after[:, None] == sample, -math.inf)
        scores = torch.cat([(out * right).sum(1, keepdim=True) - of_right[:, None], wrong], 1)
        return cross_entropy(scores, torch.zeros_like(after)), state

    def likely(self, words):
        """The logarithm of how likely each word is in a sample. Words are numbered by how frequent they are, and drawn by Zipf's law."""
        share = torch.log1p(1 / (1.0 + words)) / math.log(1 + self.predict.num_embeddings)
        return torch.log(-torch.expm1(self.sampled * torch.log1p(-share)))


def samples(of, sampled, seed):
    """Samples of words, one for each step, the same on all ranks, whose gradients then have the same rows."""
    random = torch.Generator().manual_seed(seed)
    while True:
        yield torch.exp(torch.rand(sampled, generator=random, dtype=torch.float64) * math.log(of + 1)).long().sub_(1).clamp_(0, of - 1).unique()


def perplexity(model, words, columns=10, steps=50):
    """Of a text, with the softmax over all words."""
    lanes, state, losses = words[: len(words) // columns * columns].view(columns, -1).T, None, []
    for i in range(0, len(lanes) - 1, steps):
        part = lanes[i : i + steps + 1]
        out, state = model.states(part[:-1], state)
        losses.append(cross_entropy(out @ model.predict.weight.T, part[1:].flatten(), reduction="sum").item())
    return math.exp(sum(losses) / (columns * (len(lanes) - 1)))


def load(given):
    """A text as numbers of words, by how frequent they are, how many words there are, and where its last part begins."""
    words = text(given.data, given.words)
    held = len(words) - len(words) // 10
    least = max(given.batch * (given.unroll + 1), 200)
    if held < least:
        raise ValueError(f"{given.data} has {len(words)} words, too few: give a longer text, or a smaller --batch or --unroll")
    known = {word: i for i, (word, _) in enumerate(Counter(["<unk>", *words[:held]]).most_common())}
    return torch.tensor([known.get(word, known["<unk>"]) for word in words]), len(known), held


def main():
    parser = options(__doc__, epochs=4, batch=32, rate=0.2, accumulator=1e-4)
    parser.add_argument("--data", required=True, help="text, such as wikitext-2: the first nine tenths to train on, the rest to test")
    parser.add_argument("--words", type=number, default=10**9, help="words of the text, at most")
    parser.add_argument("--width", type=number, default=64, help="of a word's rows (%(default)s)")
    parser.add_argument("--hidden", type=number, default=64, help="width of the LSTM (%(default)s)")
    parser.add_argument("--layers", type=number, default=1, help="of the LSTM (%(default)s)")
    parser.add_argument("--unroll", type=number, default=20, help="words of a row of the batch (%(default)s)")
    parser.add_argument("--sampled", type=number, default=256, help="words to sample in a step (%(default)s)")
    given = start(parser)
    words, vocabulary, held = agree(lambda: load(given))
    lanes = words[: held // given.batch * given.batch].view(given.batch, -1).T[:, dist.get_rank() :: dist.get_world_size()]
    trained = trainings(given, lambda: Model(vocabulary, given.width, given.hidden, given.layers, given.sampled))
    draw = samples(vocabulary, given.sampled, given.seed)
    for _ in range(given.epochs):
        states = {}
        batches = ((lanes[i : i + given.unroll + 1], next(draw)) for i in range(0, len(lanes) - given.unroll, given.unroll))
        for training, (part, sample) in turns(trained, batches, given.steps):
            with training.step():
                training.optimizer.zero_grad()
                loss, state = training.parallel(part, states.get(training), sample)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(training.model.lstm.parameters(), 1.0)
                training.optimizer.step()
            states[training] = [s.detach() for s in state]
    report(given, trained, lambda model: {"perplexity": round(perplexity(model, words[held:]), 2)})


if __name__ == "__main__":
    main()
