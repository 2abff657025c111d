"""The gated recurrent unit: one position after another, through a state of fixed size."""

from __future__ import annotations

from torch import nn

from variants.recurrent import Recurrent


class GRU(Recurrent):
    """torch's own GRU (reset and update gates), then a projection to d_model."""

    label = "GRU"
    colour = "#F0E442"
    paper = "Cho et al. 2014, arXiv:1406.1078"
    cell = nn.GRU
