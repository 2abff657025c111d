"""Long short-term memory: one position after another, through a gated state and a memory."""

from __future__ import annotations

from torch import nn

from variants.recurrent import Recurrent


class LSTM(Recurrent):
    """torch's own LSTM (input, forget and output gates), then a projection to d_model."""

    label = "LSTM"
    colour = "#000000"
    paper = "Hochreiter & Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735"
    cell = nn.LSTM
