"""sequinox: sequence layers for Equinox that step and unroll with the same weights."""

from ._inspect import parameters as parameters, summary as summary
from ._layer import SequenceLayer as SequenceLayer
from ._stream import Stream as Stream
from .layers import (
    Bidirectional as Bidirectional,
    BidirectionalState as BidirectionalState,
    Dense as Dense,
    Dropout as Dropout,
    LastStep as LastStep,
    MeanOverTime as MeanOverTime,
    MeanState as MeanState,
    PerSample as PerSample,
    Pointwise as Pointwise,
    Sequential as Sequential,
)
from .models import recurrent_net as recurrent_net
from .recurrent import (
    GRU as GRU,
    LSTM as LSTM,
    RNN as RNN,
    LSTMState as LSTMState,
    RecurrentCell as RecurrentCell,
)

__version__ = "0.1.0"
