"""Print the matrix of mutants x checks: X where a check fails, * for the one that must."""

import warnings

import torch

from spanwise.check import CHECKS, check_variant
from tests.mutants import MUTANTS, name_of


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    names = list(CHECKS)
    for number, name in enumerate(names, 1):
        print(f"{number:3d} {name}")
    print(" " * 28 + " ".join(f"{n:2d}" for n in range(1, len(names) + 1)))
    missed = []
    for factory, must in MUTANTS.items():
        failed = {r.check for r in check_variant(factory) if r.status == "failed"}
        row = ("*" if n == must and n in failed else "X" if n in failed else "." for n in names)
        print(f"{name_of(factory):28s}" + " ".join(f"{mark:>2s}" for mark in row), flush=True)
        missed += [] if must in failed else [f"{name_of(factory)} by {must}"]
    print(f"{len(MUTANTS)} mutants, missed: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
