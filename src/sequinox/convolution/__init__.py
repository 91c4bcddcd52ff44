"""Causal convolutions over time, and the blocks that networks of them are made of."""

from .._room import close_room as _close_room
from ._conv import Conv1d as Conv1d
from ._conv_transpose import ConvTranspose1d as ConvTranspose1d
from ._temporal_block import TemporalBlock as TemporalBlock, TemporalBlockState as TemporalBlockState
from ._wavenet import GatedConv1d as GatedConv1d, WaveNet as WaveNet

_close_room(__name__)
