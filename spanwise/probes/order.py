"""Does a model know the order of its tokens? Permute them and see."""

from __future__ import annotations

import copy
from typing import Annotated

import torch

from spanwise.arguments import AtLeast
from spanwise.probes import Found, Subject
from spanwise.seeds import torch_generator


@torch.no_grad()
def permutation(subject: Subject, *, sequences: Annotated[int, AtLeast(1)] = 8) -> Found:
    """Measure how far the model is from equivariance: f(permuted x) against permuted f(x).

    Column permutation_error: the largest difference over the largest output, in float64, over
    whole test sequences under one random permutation each; 0 but for rounding where the model
    cannot tell order.
    """
    model = copy.deepcopy(subject.model).cpu().double().eval()
    tokens = next(subject.task.batches("test", sequences)).tokens_BL[:sequences]
    generator = torch_generator(int(subject.config["seed"]), "probe", "permutation")
    moved = torch.rand(tokens.shape, generator=generator).argsort(dim=-1)
    straight = model.hidden(tokens)
    straight = straight.gather(1, moved[..., None].expand_as(straight))
    error = (model.hidden(tokens.gather(1, moved)) - straight).abs().max()
    return Found({"permutation_error": float(error / straight.abs().max())})
