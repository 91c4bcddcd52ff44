"""Training: ragged batches, losses as sums and counts, clipping, checkpoints, and a loop that may stop anywhere."""

from .._room import close_room as _close_room
from .checkpoints._checkpoints import Checkpoints as Checkpoints, Restored as Restored
from .checkpoints._model_files import load_model as load_model, save_model as save_model
from .checkpoints._warm_start import warm_start as warm_start
from .data._at_end import AtEnd as AtEnd, at_end as at_end
from .data._batches import Batch as Batch, Batches as Batches, epoch_batches as epoch_batches
from .data._buckets import Buckets as Buckets
from .data._elements import OneSequence as OneSequence
from .data._grain import (
    grain_buckets as grain_buckets,
    grain_pack as grain_pack,
    grain_pad as grain_pad,
    grain_windows as grain_windows,
)
from .data._packing import Packed as Packed, Packs as Packs, pack as pack
from .data._ragged import Padded as Padded, pad as pad, unpad as unpad
from .data._resets import move_resets as move_resets
from .data._sequence_batch import SequenceBatch as SequenceBatch
from .data._windows import Windows as Windows, windows as windows
from .loop._fit import FitResult as FitResult, fit as fit
from .loop._interrupt import Interrupt as Interrupt, catch_interrupts as catch_interrupts
from .loop._log import MetricsLog as MetricsLog
from .loop._stopping import early_stopping as early_stopping
from .losses._classification import binary_cross_entropy as binary_cross_entropy, cross_entropy as cross_entropy
from .losses._errors import absolute_error as absolute_error, huber_error as huber_error, squared_error as squared_error
from .losses._metrics import (
    accuracy as accuracy,
    bits_per_character as bits_per_character,
    confusion_matrix as confusion_matrix,
    perplexity as perplexity,
)
from .losses._sequence_losses import (
    ctc_loss as ctc_loss,
    next_token_loss as next_token_loss,
    next_tokens as next_tokens,
)
from .losses._total import Total as Total
from .step._adaptive_clip import AdaptiveClipState as AdaptiveClipState, adaptive_clip as adaptive_clip
from .step._average import (
    AveragedState as AveragedState,
    averaged_model as averaged_model,
    with_average as with_average,
)
from .step._clip import clip_by_norm as clip_by_norm, clip_by_value as clip_by_value
from .step._gradients import GradientFunction as GradientFunction, Gradients as Gradients, accumulate as accumulate
from .step._parallel import DataParallel as DataParallel, shard_largest_axis as shard_largest_axis
from .step._precision import mixed_precision as mixed_precision
from .step._state import StepReport as StepReport, TrainState as TrainState, init_train_state as init_train_state
from .step._step import make_step as make_step
from .step._truncated import look_back as look_back, truncated_bptt as truncated_bptt
from .step._weight_decay import weight_decay_mask as weight_decay_mask
from .watch._memory import MemoryEstimate as MemoryEstimate, memory_estimate as memory_estimate
from .watch._plot import plot_metrics as plot_metrics
from .watch._profile import (
    Profile as Profile,
    ProgramCost as ProgramCost,
    ProgramMemory as ProgramMemory,
    profile as profile,
)
from .watch._tensorboard import TensorBoard as TensorBoard

_close_room(__name__)
