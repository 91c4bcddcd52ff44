"""Ready models: functions that return a composed layer."""

from .._room import close_room as _close_room
from ._encoder_decoder import EncoderDecoder as EncoderDecoder
from ._flat_net import flat_net as flat_net, pooling_net as pooling_net
from ._recurrent_encoder_decoder import (
    RecurrentEncoderDecoder as RecurrentEncoderDecoder,
    SourceState as SourceState,
    recurrent_encoder_decoder as recurrent_encoder_decoder,
)
from ._recurrent_net import recurrent_net as recurrent_net
from ._temporal_conv_net import temporal_conv_net as temporal_conv_net
from ._tied_readout import TiedReadout as TiedReadout
from ._transformer import (
    encoder_decoder as encoder_decoder,
    transformer_decoder as transformer_decoder,
    transformer_encoder as transformer_encoder,
)
from ._wavenet import wavenet as wavenet

_close_room(__name__)
