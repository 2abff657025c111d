"""A task of a third party whose data does not fit into memory."""

import torch

from tasks.interface import Task


class Hungry(Task):
    causal = True
    chance = 0.5

    def __init__(self, length, seed):
        self.length, self.seed = length, seed
        self.vocab_size = self.n_classes = 2

    def batches(self, split, batch_size):
        yield torch.ones(2**29)
