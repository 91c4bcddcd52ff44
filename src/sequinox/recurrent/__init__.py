"""Recurrent cells: one file a cell, and the engine that unrolls them."""

from .._room import close_room as _close_room
from ._cell import RecurrentCell as RecurrentCell
from ._diagonal import DiagonalRecurrence as DiagonalRecurrence
from ._diagonal_scan import ComplexPair as ComplexPair, diagonal_scan as diagonal_scan
from ._gru import GRU as GRU
from ._ind_rnn import IndRNN as IndRNN
from ._initializers import scaled_identity as scaled_identity, scaled_to_norm as scaled_to_norm
from ._lru import LRU as LRU
from ._lstm import LSTM as LSTM, FGRState as FGRState, LSTMState as LSTMState
from ._mgu import MGU as MGU
from ._min_gru import MinGRU as MinGRU
from ._min_lstm import MinLSTM as MinLSTM
from ._rda import RDA as RDA
from ._recurrent_dropout import (
    RecurrentDropout as RecurrentDropout,
    RecurrentDropoutState as RecurrentDropoutState,
)
from ._rnn import RNN as RNN
from ._rwa import RWA as RWA, RWAState as RWAState
from ._zoneout import Zoneout as Zoneout

_close_room(__name__)
