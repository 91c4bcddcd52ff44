"""What names of other libraries are called here."""

import difflib
from collections.abc import Sequence

ELSEWHERE = {
    "AdditiveAttention": "MultiHeadCrossAttention",
    "Attention": "MultiHeadSelfAttention or MultiHeadCrossAttention",
    "BiGRU": "Bidirectional, of two GRU",
    "BiLSTM": "Bidirectional, of two LSTM",
    "BidirectionalLSTM": "Bidirectional, of two LSTM",
    "CausalConv1d": "Conv1d, which is causal",
    "Conv": "Conv1d",
    "CrossAttention": "MultiHeadCrossAttention",
    "CrossAttn": "MultiHeadCrossAttention",
    "Embedding": "equinox.nn.Embedding, in front in a Sequential",
    "GRUCell": "GRU, whose step reads one sample",
    "LSTMCell": "LSTM, whose step reads one sample",
    "Lambda": "the function itself, in a Sequential",
    "LayerNorm": "equinox.nn.LayerNorm, in a Sequential",
    "Linear": "Dense, or equinox.nn.Linear in a Sequential",
    "MHA": "MultiHeadSelfAttention or MultiHeadCrossAttention",
    "MHSA": "MultiHeadSelfAttention",
    "MultiHeadAttention": "MultiHeadSelfAttention or MultiHeadCrossAttention",
    "RMSNorm": "equinox.nn.RMSNorm, in a Sequential",
    "RNNCell": "RNN, whose step reads one sample",
    "SelfAttention": "MultiHeadSelfAttention",
    "SelfAttn": "MultiHeadSelfAttention",
    "SimpleRNN": "RNN",
    "Transformer": "encoder_decoder, transformer_encoder or transformer_decoder",
    "TransformerDecoderLayer": "TransformerBlock",
    "TransformerEncoderLayer": "TransformerBlock",
    "TransformerLayer": "TransformerBlock",
    "from_pytorch": "from_torch",
    "load_pytorch": "load_torch",
    "pack_padded_sequence": "pad, whose mask a layer takes, or pack",
    "pad_sequence": "pad",
    "sequence_mask": "mask_from_lengths",
    "to_pytorch": "to_torch",
}
"""What to write in place of a name that is known from elsewhere, where it is not the same but for capitals."""


def suggestion(name: str, names: Sequence[str]) -> str:
    """What may have been meant by a name that is not there, as the end of an error's message."""
    plain = lambda n: n.lower().replace("_", "")
    found = [known for n, known in ELSEWHERE.items() if plain(n) == plain(name)]
    found = found or [n for n in names if plain(n) == plain(name)] or difflib.get_close_matches(name, names, 1)
    return f": did you mean {found[0]}?" if found else ""
