"""Recurrent cells: one file a cell, and the engine that unrolls them."""

from ._cell import RecurrentCell as RecurrentCell
from ._gru import GRU as GRU
from ._lstm import LSTM as LSTM, LSTMState as LSTMState
from ._rnn import RNN as RNN
