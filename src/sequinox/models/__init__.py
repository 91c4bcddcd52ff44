"""Ready models: functions that return a composed layer."""

from ._recurrent_net import recurrent_net as recurrent_net
from ._transformer import (
    EncoderDecoder as EncoderDecoder,
    TiedReadout as TiedReadout,
    encoder_decoder as encoder_decoder,
    transformer_decoder as transformer_decoder,
    transformer_encoder as transformer_encoder,
)
