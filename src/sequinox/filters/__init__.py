"""Filters with fixed or adaptive coefficients, and running statistics, as layers."""

from .._room import close_room as _close_room
from ._adaptive_one_pole import AdaptiveOnePole as AdaptiveOnePole, AdaptiveOnePoleState as AdaptiveOnePoleState
from ._fir import FIR as FIR
from ._lms import LMS as LMS, NLMS as NLMS, LMSState as LMSState
from ._one_pole import OnePole as OnePole
from ._running import RunningCount as RunningCount, RunningMax as RunningMax, RunningMean as RunningMean
from ._state_space import Modes as Modes, StateSpace as StateSpace

_close_room(__name__)
