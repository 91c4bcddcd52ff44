"""Layers without recurrence of their own, pooling over time, and composition."""

from ._bidirectional import Bidirectional as Bidirectional, BidirectionalState as BidirectionalState
from ._feed_forward import FeedForward as FeedForward
from ._pointwise import Dense as Dense, Dropout as Dropout, PerSample as PerSample, Pointwise as Pointwise
from ._pooling import LastStep as LastStep, MeanOverTime as MeanOverTime, MeanState as MeanState
from ._sequential import Sequential as Sequential
from ._stack import Remat as Remat, Stack as Stack
