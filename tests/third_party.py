"""Variants of a third party that do what a cell has to survive."""

import os
import signal
import sys
import time

import torch

from variants.interface import AttentionVariant


class _Faulty(AttentionVariant):
    def attend(self, q, k, v, lengths):
        self.misbehave()
        return v

    def misbehave(self):
        raise NotImplementedError


class Raises(_Faulty):
    def misbehave(self):
        raise RuntimeError("attend cannot do this\nnor that")


class Allocates(_Faulty):
    def misbehave(self):
        self.kept = torch.ones(2**29)


class Sleeps(_Faulty):
    def misbehave(self):
        time.sleep(60)


class Leaves(_Faulty):
    def misbehave(self):
        sys.exit(0)


class Prints(_Faulty):
    def misbehave(self):
        print("a word from the variant")
        print("a word from the variant", file=sys.stderr)


class Killed(_Faulty):
    def misbehave(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Nans(AttentionVariant):
    def attend(self, q, k, v, lengths):
        return v * float("nan")
