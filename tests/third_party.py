"""Variants of a third party that do what a cell has to survive."""

import os
import signal
import subprocess
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


class _InBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, grad):
        return grad + torch.ones(2**29).sum()


class AllocatesBackward(AttentionVariant):
    def attend(self, q, k, v, lengths):
        return _InBackward.apply(v)


class WrongShape(AttentionVariant):
    def attend(self, q, k, v, lengths):
        return v[:, :, 1:]


class LeavesChildren(_Faulty):
    def misbehave(self):
        if not hasattr(self, "left"):
            self.left = subprocess.Popen(["sleep", "60"], start_new_session=True)
            print(self.left.pid)


class Infinite(AttentionVariant):
    def attend(self, q, k, v, lengths):
        return v * float("inf")


class Segfaults(_Faulty):
    def misbehave(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class IgnoresTerm(_Faulty):
    def misbehave(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            pass
