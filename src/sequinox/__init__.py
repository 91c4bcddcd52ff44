"""sequinox: sequence layers for Equinox that step and unroll with the same weights."""

import importlib as _importlib
import typing as _typing

from ._elsewhere import suggestion as _suggestion
from ._inspect import parameters as parameters, summary as summary
from ._layer import SequenceLayer as SequenceLayer
from ._mask import mask_from_lengths as mask_from_lengths
from ._precision import KEEPS_FLOAT32 as KEEPS_FLOAT32, cast as cast, keeps_float32 as keeps_float32
from ._room import close_room as _close_room
from ._stream import Stream as Stream
from .attention import (
    AddLearnedPositions as AddLearnedPositions,
    AddPositions as AddPositions,
    BlockState as BlockState,
    GatedFusion as GatedFusion,
    GrowingKVCache as GrowingKVCache,
    KVCache as KVCache,
    Memory as Memory,
    MultiHeadCrossAttention as MultiHeadCrossAttention,
    MultiHeadSelfAttention as MultiHeadSelfAttention,
    NoMemory as NoMemory,
    RingKVCache as RingKVCache,
    Rotary as Rotary,
    TransformerBlock as TransformerBlock,
    scaled_dot_product_attention as scaled_dot_product_attention,
    with_capacity as with_capacity,
)
from .convolution import (
    Conv1d as Conv1d,
    ConvTranspose1d as ConvTranspose1d,
    GatedConv1d as GatedConv1d,
    TemporalBlock as TemporalBlock,
    TemporalBlockState as TemporalBlockState,
    WaveNet as WaveNet,
)
from .decoding import Generated as Generated, generate as generate, unroll_forced as unroll_forced
from .filters import (
    FIR as FIR,
    LMS as LMS,
    NLMS as NLMS,
    AdaptiveOnePole as AdaptiveOnePole,
    AdaptiveOnePoleState as AdaptiveOnePoleState,
    LMSState as LMSState,
    Modes as Modes,
    OnePole as OnePole,
    RunningCount as RunningCount,
    RunningMax as RunningMax,
    RunningMean as RunningMean,
    StateSpace as StateSpace,
)
from .layers import (
    Bidirectional as Bidirectional,
    BidirectionalState as BidirectionalState,
    Dense as Dense,
    Dropout as Dropout,
    FeedForward as FeedForward,
    Flatten as Flatten,
    FlattenState as FlattenState,
    LastStep as LastStep,
    MaxOverTime as MaxOverTime,
    MaxState as MaxState,
    MeanOverTime as MeanOverTime,
    MeanState as MeanState,
    Parallel as Parallel,
    PerSample as PerSample,
    Pointwise as Pointwise,
    Remat as Remat,
    Residual as Residual,
    Sequential as Sequential,
    Stack as Stack,
    TrainedStart as TrainedStart,
    VariationalDropout as VariationalDropout,
    VariationalDropoutState as VariationalDropoutState,
    WeightDrop as WeightDrop,
)
from .models import (
    EncoderDecoder as EncoderDecoder,
    RecurrentEncoderDecoder as RecurrentEncoderDecoder,
    SourceState as SourceState,
    TiedReadout as TiedReadout,
    encoder_decoder as encoder_decoder,
    flat_net as flat_net,
    pooling_net as pooling_net,
    recurrent_encoder_decoder as recurrent_encoder_decoder,
    recurrent_net as recurrent_net,
    temporal_conv_net as temporal_conv_net,
    transformer_decoder as transformer_decoder,
    transformer_encoder as transformer_encoder,
    wavenet as wavenet,
)
from .recurrent import (
    GRU as GRU,
    LRU as LRU,
    LSTM as LSTM,
    MGU as MGU,
    RDA as RDA,
    RNN as RNN,
    RWA as RWA,
    ComplexPair as ComplexPair,
    DiagonalRecurrence as DiagonalRecurrence,
    FGRState as FGRState,
    IndRNN as IndRNN,
    LSTMState as LSTMState,
    MinGRU as MinGRU,
    MinLSTM as MinLSTM,
    RecurrentCell as RecurrentCell,
    RecurrentDropout as RecurrentDropout,
    RecurrentDropoutState as RecurrentDropoutState,
    RWAState as RWAState,
    Zoneout as Zoneout,
    diagonal_scan as diagonal_scan,
    scaled_identity as scaled_identity,
    scaled_to_norm as scaled_to_norm,
)

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from .interop import *  # noqa: F403
    from .tasks import *  # noqa: F403
    from .testing import *  # noqa: F403
    from .train import *  # noqa: F403

_LATER = {  # the names that `__getattr__` finds, by their room
    "interop": "from_torch load_torch save_safetensors to_torch",
    "tasks": "JapaneseVowels Split japanese_vowels standardise",
    "testing": "check_layer",
    "train": """
        AdaptiveClipState AtEnd AveragedState Batch Batches Buckets Checkpoints DataParallel FitResult GradientFunction
        Gradients Interrupt MemoryEstimate MetricsLog OneSequence Packed Packs Padded Profile ProgramCost ProgramMemory
        Restored SequenceBatch StepReport TensorBoard Total TrainState Windows absolute_error accumulate accuracy
        adaptive_clip at_end averaged_model binary_cross_entropy bits_per_character catch_interrupts clip_by_norm
        clip_by_value confusion_matrix cross_entropy ctc_loss early_stopping epoch_batches fit grain_buckets grain_pack
        grain_pad grain_windows huber_error init_train_state load_model look_back make_step memory_estimate
        mixed_precision move_resets next_token_loss next_tokens pack pad perplexity plot_metrics profile save_model
        shard_largest_axis squared_error truncated_bptt unpad warm_start weight_decay_mask windows with_average
    """,
}
_ROOM_OF = {name: room for room, names in _LATER.items() for name in (room, *names.split())}


def __getattr__(name: str) -> _typing.Any:
    """What is no layer is imported when first asked for: training alone takes longer than all the layers."""
    if name not in _ROOM_OF:
        hint = "" if name.startswith("_") else _suggestion(name, globals()["__all__"])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    room = _importlib.import_module(f"{__name__}.{_ROOM_OF[name]}")
    return room if name in _LATER else getattr(room, name)


_ROOMS = ("attention", "convolution", "decoding", "filters", "layers", "models", "recurrent")
_close_room(__name__, later=(*_ROOMS, *_ROOM_OF))
