"""The part of the table of layers for convolutions and the networks made of them.

Rows have four samples, so receptive fields of at most three leave something to see beyond them.
"""

from entry import KEYS, Entry

import sequinox as sqx

_tcn, _wavenet = sqx.temporal_conv_net, sqx.wavenet
CONVOLUTION = [
    Entry("Conv1d-grouped-normed", sqx.Conv1d, lambda: sqx.Conv1d(4, 6, 3, KEYS[0], groups=2, weight_norm=True)),
    Entry(  # a dilated convolution behind one that is not: together they leave no sample out
        "Conv1d-dilated",
        sqx.Sequential,
        lambda: sqx.Sequential(
            [sqx.Conv1d(3, 5, 2, KEYS[0]), sqx.Conv1d(5, 2, 2, KEYS[1], dilation=2, use_bias=False)]
        ),
        composed=True,
        further=True,
    ),
    Entry("ConvTranspose1d", sqx.ConvTranspose1d, lambda: sqx.ConvTranspose1d(3, 2, 8, 3, KEYS[0])),
    Entry("GatedConv1d", sqx.GatedConv1d, lambda: sqx.GatedConv1d(3, 5, 2, KEYS[0])),
    Entry("TemporalBlock", sqx.TemporalBlock, lambda: sqx.TemporalBlock(3, 5, 2, KEYS[0])),
    Entry("WaveNet", sqx.WaveNet, lambda: sqx.WaveNet(3, 2, (1, 2), KEYS[0], n_hidden=5)),
    Entry(
        "temporal_conv_net-dropout-training",
        _tcn,
        lambda: _tcn(3, [5, 5], 2, KEYS[0], dropout=0.2),
        key=KEYS[3],
        composed=True,
    ),
    Entry(
        "wavenet-tokens",
        _wavenet,
        lambda: _wavenet(4, 3, 4, KEYS[0], n_layers=2, n_skip=5, first_kernel_size=2, tokens=True),
        n_in=4,
        composed=True,
    ),
]
