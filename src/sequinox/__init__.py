"""sequinox: sequence layers for Equinox that step and unroll with the same weights."""

import importlib
import types
from typing import TYPE_CHECKING, Any

from ._generate import Generated as Generated, generate as generate
from ._inspect import parameters as parameters, summary as summary
from ._layer import SequenceLayer as SequenceLayer
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
    RingKVCache as RingKVCache,
    Rotary as Rotary,
    TransformerBlock as TransformerBlock,
    scaled_dot_product_attention as scaled_dot_product_attention,
    with_capacity as with_capacity,
)
from .layers import (
    Bidirectional as Bidirectional,
    BidirectionalState as BidirectionalState,
    Dense as Dense,
    Dropout as Dropout,
    FeedForward as FeedForward,
    LastStep as LastStep,
    MeanOverTime as MeanOverTime,
    MeanState as MeanState,
    PerSample as PerSample,
    Pointwise as Pointwise,
    Remat as Remat,
    Sequential as Sequential,
    Stack as Stack,
)
from .models import (
    EncoderDecoder as EncoderDecoder,
    TiedReadout as TiedReadout,
    encoder_decoder as encoder_decoder,
    recurrent_net as recurrent_net,
    transformer_decoder as transformer_decoder,
    transformer_encoder as transformer_encoder,
)
from .recurrent import (
    GRU as GRU,
    LSTM as LSTM,
    RNN as RNN,
    LSTMState as LSTMState,
    RecurrentCell as RecurrentCell,
)

__version__ = "0.1.0"

if TYPE_CHECKING:  # what `__getattr__` finds
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
        Batch as Batch,
        Batches as Batches,
        Checkpoints as Checkpoints,
        FitResult as FitResult,
        Interrupt as Interrupt,
        MetricsLog as MetricsLog,
        Padded as Padded,
        Restored as Restored,
        StepReport as StepReport,
        Total as Total,
        TrainState as TrainState,
        accuracy as accuracy,
        catch_interrupts as catch_interrupts,
        clip_by_norm as clip_by_norm,
        cross_entropy as cross_entropy,
        epoch_batches as epoch_batches,
        fit as fit,
        init_train_state as init_train_state,
        make_step as make_step,
        pad as pad,
        squared_error as squared_error,
    )

_LATER = ("tasks", "testing", "train")


def __getattr__(name: str) -> Any:
    """Training, tasks and testing are imported when first asked for: they take longer to import than all the layers."""
    if not name.startswith("_"):
        for subpackage in _LATER:
            module = importlib.import_module(f"{__name__}.{subpackage}")
            if name == subpackage:
                return module
            if not isinstance(vars(module).get(name), types.ModuleType | None):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
