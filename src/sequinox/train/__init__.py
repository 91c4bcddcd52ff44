"""Training: ragged batches, losses as sums and counts, clipping, checkpoints, and a loop that may stop anywhere."""

from ._batches import Batch as Batch, Batches as Batches, epoch_batches as epoch_batches
from ._checkpoints import Checkpoints as Checkpoints, Restored as Restored
from ._clip import clip_by_norm as clip_by_norm
from ._fit import FitResult as FitResult, fit as fit
from ._interrupt import Interrupt as Interrupt, catch_interrupts as catch_interrupts
from ._log import MetricsLog as MetricsLog
from ._losses import (
    Total as Total,
    accuracy as accuracy,
    cross_entropy as cross_entropy,
    squared_error as squared_error,
)
from ._ragged import Padded as Padded, pad as pad
from ._state import (
    StepReport as StepReport,
    TrainState as TrainState,
    init_train_state as init_train_state,
    make_step as make_step,
)
