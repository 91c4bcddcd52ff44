"""sequinox: sequence layers for Equinox that step and unroll with the same weights."""

import importlib
import types
from typing import TYPE_CHECKING, Any

from ._generate import Generated as Generated, generate as generate
from ._inspect import parameters as parameters, summary as summary
from ._layer import SequenceLayer as SequenceLayer
from ._precision import KEEPS_FLOAT32 as KEEPS_FLOAT32, cast as cast, keeps_float32 as keeps_float32
from ._stream import Stream as Stream
from ._teacher_forcing import unroll_forced as unroll_forced
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

if TYPE_CHECKING:  # what `__getattr__` finds
    from .interop import (
        from_torch as from_torch,
        load_torch as load_torch,
        save_safetensors as save_safetensors,
        to_torch as to_torch,
    )
    from .tasks import (
        JapaneseVowels as JapaneseVowels,
        Split as Split,
        japanese_vowels as japanese_vowels,
        standardise as standardise,
    )
    from .testing import (
        check_layer as check_layer,
    )
    from .train import (
        AdaptiveClipState as AdaptiveClipState,
        AtEnd as AtEnd,
        AveragedState as AveragedState,
        Batch as Batch,
        Batches as Batches,
        Buckets as Buckets,
        Checkpoints as Checkpoints,
        DataParallel as DataParallel,
        FitResult as FitResult,
        GradientFunction as GradientFunction,
        Gradients as Gradients,
        Interrupt as Interrupt,
        MemoryEstimate as MemoryEstimate,
        MetricsLog as MetricsLog,
        OneSequence as OneSequence,
        Packed as Packed,
        Packs as Packs,
        Padded as Padded,
        Profile as Profile,
        ProgramCost as ProgramCost,
        ProgramMemory as ProgramMemory,
        Restored as Restored,
        SequenceBatch as SequenceBatch,
        StepReport as StepReport,
        TensorBoard as TensorBoard,
        Total as Total,
        TrainState as TrainState,
        Windows as Windows,
        absolute_error as absolute_error,
        accumulate as accumulate,
        accuracy as accuracy,
        adaptive_clip as adaptive_clip,
        at_end as at_end,
        averaged_model as averaged_model,
        binary_cross_entropy as binary_cross_entropy,
        bits_per_character as bits_per_character,
        catch_interrupts as catch_interrupts,
        clip_by_norm as clip_by_norm,
        clip_by_value as clip_by_value,
        confusion_matrix as confusion_matrix,
        cross_entropy as cross_entropy,
        ctc_loss as ctc_loss,
        early_stopping as early_stopping,
        epoch_batches as epoch_batches,
        fit as fit,
        grain_buckets as grain_buckets,
        grain_pack as grain_pack,
        grain_pad as grain_pad,
        grain_windows as grain_windows,
        huber_error as huber_error,
        init_train_state as init_train_state,
        load_model as load_model,
        look_back as look_back,
        make_step as make_step,
        memory_estimate as memory_estimate,
        mixed_precision as mixed_precision,
        move_resets as move_resets,
        next_token_loss as next_token_loss,
        next_tokens as next_tokens,
        pack as pack,
        pad as pad,
        perplexity as perplexity,
        plot_metrics as plot_metrics,
        profile as profile,
        save_model as save_model,
        shard_largest_axis as shard_largest_axis,
        squared_error as squared_error,
        truncated_bptt as truncated_bptt,
        unpad as unpad,
        warm_start as warm_start,
        weight_decay_mask as weight_decay_mask,
        windows as windows,
        with_average as with_average,
    )

_LATER = ("interop", "tasks", "testing", "train")


def __getattr__(name: str) -> Any:
    """What is no layer is imported when first asked for: training alone takes longer than all the layers."""
    if not name.startswith("_"):
        for subpackage in _LATER:
            module = importlib.import_module(f"{__name__}.{subpackage}")
            if name == subpackage:
                return module
            if not isinstance(vars(module).get(name), types.ModuleType | None):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
