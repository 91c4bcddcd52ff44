"""Layers without recurrence of their own, pooling over time, and composition."""

from .._room import close_room as _close_room
from ._bidirectional import Bidirectional as Bidirectional, BidirectionalState as BidirectionalState
from ._feed_forward import FeedForward as FeedForward
from ._flatten import Flatten as Flatten, FlattenState as FlattenState
from ._parallel import Parallel as Parallel
from ._pointwise import Dense as Dense, Dropout as Dropout, PerSample as PerSample, Pointwise as Pointwise
from ._pooling import (
    LastStep as LastStep,
    MaxOverTime as MaxOverTime,
    MaxState as MaxState,
    MeanOverTime as MeanOverTime,
    MeanState as MeanState,
)
from ._remat import Remat as Remat
from ._residual import Residual as Residual
from ._sequential import Sequential as Sequential
from ._stack import Stack as Stack
from ._trained_start import TrainedStart as TrainedStart
from ._variational_dropout import (
    VariationalDropout as VariationalDropout,
    VariationalDropoutState as VariationalDropoutState,
)
from ._weight_drop import WeightDrop as WeightDrop

_close_room(__name__)
