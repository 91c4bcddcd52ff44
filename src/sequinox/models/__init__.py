"""Ready models: functions that return a composed layer."""

from ._encoder_decoder import EncoderDecoder as EncoderDecoder
from ._recurrent_net import recurrent_net as recurrent_net
from ._tied_readout import TiedReadout as TiedReadout
from ._transformer import (
    encoder_decoder as encoder_decoder,
    transformer_decoder as transformer_decoder,
    transformer_encoder as transformer_encoder,
)
