"""Checks that the same thing gives the same: seeds, states, modes, calls, processes."""

from __future__ import annotations

import atexit
import copy
import hashlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import cloudpickle
import torch

from spanwise.check.subject import LENGTH, Failed, Skipped, Subject, expect_close, inputs


def check_same_call_same_bits(subject: Subject) -> None:
    """A second call gives the same bits, in training too, whatever was called between."""
    for case in subject.cases(positions=True):
        x = inputs(2, LENGTH)
        for training in (False, True):
            case.layer.train(training)
            first = case.layer(x)
            case.layer(inputs(3, LENGTH + 8))
            case.layer(x, torch.tensor([4, LENGTH]))
            words = f"{case.words}, {'training' if training else 'evaluation'}: the second call"
            expect_close(case.layer(x), first, words, 0)


def check_train_equals_eval(subject: Subject) -> None:
    """Without dropout, training and evaluation give the same."""
    for case in subject.cases():
        x = inputs(2, LENGTH)
        words = f"{case.words}: training against evaluation, dropout 0"
        expect_close(case.layer.train()(x), case.layer.eval()(x), words, 0)


def check_dropout(subject: Subject) -> None:
    """Dropout acts in training and not in evaluation."""
    for case in subject.cases():
        x = inputs(2, LENGTH)
        dropping = subject.build(causal=case.causal, dropout=0.5)
        dropping.load_state_dict(case.layer.state_dict())
        for _ in range(2):
            words = f"{case.words}: evaluation with dropout 0.5 against 0"
            expect_close(dropping.eval()(x), case.layer(x), words, 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            first, second = dropping.train()(x), dropping(x)
        if torch.equal(first, second):
            raise Failed(
                f"{case.words}: two calls in training with dropout 0.5 are equal; "
                "expected other activations dropped"
            )


def check_same_seed_same_bits(subject: Subject) -> None:
    """Two layers built from one seed are equal bit for bit; from another seed they are not."""
    for causal in subject.modes:
        x = inputs(2, LENGTH)
        first = subject.build(seed=3, causal=causal)
        torch.rand(7)  # the global generator must not matter
        words = f"{'causal' if causal else 'bidirectional'}: two layers of one seed"
        expect_close(subject.build(seed=3, causal=causal)(x), first(x), words, 0)
        if any(True for _ in first.parameters()):
            other = subject.build(seed=4, causal=causal)
            if torch.equal(other(x), first(x)):
                raise Failed("layers of seeds 3 and 4 are equal; expected other weights")


def check_same_bits_in_another_process(subject: Subject) -> None:
    """A fresh process, with other hash seeds, gives the same bits."""
    try:
        packed = cloudpickle.dumps(subject.factory)
    except Exception as error:
        raise Skipped(f"the factory cannot be sent to another process: {error}") from None
    expected = digest(packed)
    found = _other_process().submit(digest, packed).result()
    if found != expected:
        raise Failed(f"outputs hash to {found[:12]} in a fresh process; expected {expected[:12]}")


def check_state_dict(subject: Subject) -> None:
    """A layer with another's state gives the other's outputs, bit for bit; so does a deep copy."""
    for causal in subject.modes:
        x = inputs(2, LENGTH)
        layer, other = (subject.build(seed=seed, causal=causal) for seed in (0, 1))
        words = "causal" if causal else "bidirectional"
        expected = layer(x)
        other.load_state_dict(layer.state_dict())
        expect_close(other(x), expected, f"{words}: a layer with the state of another", 0)
        expect_close(copy.deepcopy(layer)(x), expected, f"{words}: a deep copy", 0)


def digest(packed: bytes) -> str:
    """Return the hash of the outputs of a pickled factory's layers, built from seed 3."""
    torch.set_num_threads(1)
    subject = Subject(cloudpickle.loads(packed))
    hashed = hashlib.sha256()
    for causal in subject.modes:
        y = subject.build(seed=3, causal=causal)(inputs(2, LENGTH))
        hashed.update(y.detach().numpy().tobytes())
    return hashed.hexdigest()


@cache
def _other_process() -> ProcessPoolExecutor:
    # One for all variants: it takes seconds to import torch.
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    atexit.register(pool.shutdown)
    own = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "4321" if own != "4321" else "1234"
    try:
        pool.submit(int).result()  # the process starts with this environment
    finally:
        os.environ.pop("PYTHONHASHSEED")
        if own is not None:
            os.environ["PYTHONHASHSEED"] = own
    return pool
