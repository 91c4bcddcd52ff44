"""The part of the table of layers for diagonal recurrences and linear filters."""

from entry import KEYS, N_HIDDEN, N_IN, N_OUT, Entry

import sequinox as sqx

A = [[0.4, 0.1, 0.0, 0.0, 0.2], [0.0, 0.3, 0.2, 0.0, 0.0], [0.1, 0.0, 0.2, 0.1, 0.0]] + [[0.1] * N_HIDDEN] * 2
B = [[0.5, -0.2, 0.3], [0.1, 0.4, -0.6], [0.3, 0.3, 0.3], [-0.4, 0.2, 0.1], [0.2, 0.1, 0.7]]
C = [[0.3, 0.1, -0.2, 0.4, 0.2], [0.1, -0.5, 0.3, 0.2, 0.1]]
D = [[0.2, 0.5, 0.1], [-0.3, 0.1, 0.4]]

DIAGONAL = [
    Entry("MinGRU", sqx.MinGRU, lambda: sqx.MinGRU(N_IN, N_HIDDEN, KEYS[0])),
    Entry(
        "MinLSTM-chunked",
        sqx.MinLSTM,
        lambda: sqx.MinLSTM(N_IN, N_HIDDEN, KEYS[0], forget_bias=1.0, method="chunked"),
    ),
    Entry("LRU", sqx.LRU, lambda: sqx.LRU(N_IN, N_HIDDEN, KEYS[0], n_out=N_OUT, r_min=0.4, max_phase=3.0)),
    Entry(
        "LRU-associative",
        sqx.LRU,
        lambda: sqx.LRU(N_IN, N_HIDDEN, KEYS[0], n_out=N_OUT, method="associative"),
        further=True,
    ),
    Entry("OnePole", sqx.OnePole, lambda: sqx.OnePole(N_IN, [0.9, 0.5, -0.3], [0.2, 0.7, 1.1])),
    Entry("StateSpace", sqx.StateSpace, lambda: sqx.StateSpace(A, B, C, D, implementation="fused")),
    Entry(
        "StateSpace-scan", sqx.StateSpace, lambda: sqx.StateSpace(A, B, implementation="scan"), variant_of="StateSpace"
    ),
]
