"""Arrays and what is written beside them belong together: sizes, dtypes, and a checksum of each array."""

import functools
import shutil
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
import safetensors.numpy
from stored_files import change_checkpoint, change_file

import sequinox as sqx
from sequinox.train import Checkpoints, init_train_state, load_model, save_model, warm_start, with_average
from sequinox.train.checkpoints._checksum import add_up, array_sum, own_sums


def net(seed=0):
    return sqx.Sequential([sqx.GRU(3, 4, jax.random.key(seed)), sqx.LastStep(), sqx.Dense(4, 2, jax.random.key(seed))])


def state(seed=0):
    return init_train_state(net(seed), with_average(optax.sgd(0.1), 0.5), jax.random.key(seed))


def save(directory):
    with Checkpoints(directory, keep_last=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step), step)


def restore(path):
    with Checkpoints(path, read_only=True) as checkpoints:
        return checkpoints.restore(state(0)).state


READ = {
    "restore": restore,
    "load_model": load_model,
    "load_model, averaged": lambda path: load_model(path, averaged=True),
    "load_model, like": lambda path: load_model(path, like=net(0)),
    "warm_start": lambda path: warm_start(net(0), path),
}
W, AVERAGE = ".model.layers[0].W_z", ".opt_state.average.layers[0].W_z"


# ---- accidents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", READ)
def test_arrays_of_another_step_are_noticed(tmp_path, read):
    save(tmp_path)
    READ[read](tmp_path)
    shutil.rmtree(tmp_path / "2" / "arrays")
    shutil.copytree(tmp_path / "1" / "arrays", tmp_path / "2" / "arrays")
    with pytest.raises(OSError, match=r"of another checkpoint; their checksums are wrong:\n(.*\n)*.*layers\[0\]\.W_z"):
        READ[read](tmp_path)


def test_of_a_part_that_is_read_the_checksum_is_compared_and_of_no_other(tmp_path):
    """Of a model its arrays; of its average that, and not the weights it stands for."""
    save(tmp_path)
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        paths = checkpoints.describe_step()[1].leaves
    assert {W, AVERAGE} <= set(paths)
    wrong = lambda path: lambda it: it["leaves"][path].update(sum="0" * 16)
    of_weights = {"restore", "load_model", "load_model, like", "warm_start"}
    for path, noticed in ((W, of_weights), (AVERAGE, {"restore", "load_model, averaged"})):
        before = (tmp_path / "2" / "_CHECKPOINT_METADATA").read_text()
        change_checkpoint(tmp_path / "2", wrong(path))
        for name, read in READ.items():
            if name in noticed:
                with pytest.raises(OSError, match="their checksums are wrong:\n") as error:
                    read(tmp_path)
                assert str(error.value).splitlines()[1:] == [f"  {path}"]
            else:
                read(tmp_path)
        (tmp_path / "2" / "_CHECKPOINT_METADATA").write_text(before)


def test_any_changed_byte_of_a_file_is_noticed(tmp_path):
    path = tmp_path / "m.safetensors"
    save_model(net(), path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    places = [*range(8, 8 + length, 97), *range(8 + length, len(content), 41)]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            model = load_model(path)
        except (ValueError, OSError):
            continue
        assert place < 8 + length  # a space of the header, or "format", which says nothing
        assert eqx.tree_equal(model, net())
    path.write_bytes(content)
    arrays = safetensors.numpy.load_file(path)
    with pytest.raises(
        OSError, match=r"its arrays are not those it describes:\n  .layers\[0\].U: in its description, but"
    ):
        write_without(path, arrays, "layers[0].U")


def write_without(path, arrays, name):
    with safetensors.safe_open(path, framework="np") as file:
        metadata = file.metadata()
    safetensors.numpy.save_file({k: v for k, v in arrays.items() if k != name}, path, metadata)
    load_model(path)


# ---- edits that come with a right checksum ---------------------------------------------------------------------------


def test_another_dtype_in_the_whole_description_is_no_cast(tmp_path):
    save(tmp_path)

    def to_integers(it):
        it["leaves"][W]["dtype"] = "int32"
        it["model"]["structure"]["fields"]["layers"]["tuple"][0]["fields"]["W_z"]["dtype"] = "int32"

    change_checkpoint(tmp_path / "2", to_integers)
    message = r"\.model\.layers\[0\]\.W_z has dtype float32 there, and int32 in its description"
    with pytest.raises(OSError, match=message):
        load_model(tmp_path)
    like = eqx.tree_at(lambda s: s.model.layers[0].W_z, state(0), jnp.zeros((4, 3), jnp.int32))
    with Checkpoints(tmp_path, read_only=True) as checkpoints, pytest.raises(OSError, match=message):
        checkpoints.restore(like)


def dense():
    return sqx.Dense(3, 2, jax.random.key(0))


SIZES = {
    "n_hidden beside other arrays": (sqx.GRU, "n_hidden", 7, r"W_r is an array of shape \(4, 3\).*n_hidden is 7"),
    "n_in a text": (sqx.GRU, "n_in", "x", r"n_in is 'x', where GRU has int"),
    "n_in a float": (sqx.GRU, "n_in", 3.0, r"n_in is 3\.0, where GRU has int"),
    "n_in a boolean": (sqx.GRU, "n_in", True, r"n_in is True, where GRU has int"),
    "n_in none": (sqx.GRU, "n_in", None, r"n_in is None, where GRU has int"),
    "n_in a list": (sqx.GRU, "n_in", {"list": [3]}, r"n_in is \[3\], where GRU has int"),
    "n_in a function": (sqx.GRU, "n_in", {"name": "jax.nn:relu"}, r"n_in is <.*, where GRU has int"),
    "a name that is none of those": (sqx.RNN, "activation", "gelu", r"activation is 'gelu', where RNN has Literal\["),
    "an array a text": (sqx.GRU, "W_z", "x", r"W_z is 'x', where GRU has "),
    "an array with an axis less": (sqx.GRU, "b_z", {"array": [], "dtype": "float32"}, r"b_z is an array of shape \(\)"),
}


@pytest.mark.parametrize("case", SIZES)
def test_a_field_that_does_not_fit_its_class_or_the_arrays_is_named(tmp_path, case):
    cell, field, value, message = SIZES[case]
    path = tmp_path / "m.safetensors"
    save_model({"cell": cell(3, 4, jax.random.key(0))}, path)
    change_file(path, lambda it: it["structure"]["dict"][0][1]["fields"].update({field: value}))
    with pytest.raises(ValueError, match=rf"load_model: {path}: .*\['cell'\]\.{message}"):
        load_model(path)


def test_factors_rates_and_nested_layers_are_compared_too(tmp_path):
    path = tmp_path / "m.safetensors"
    attention = lambda: sqx.MultiHeadSelfAttention(6, 2, jax.random.key(0))
    dropout = sqx.Dropout(0.25)
    for model, field, value in ((attention(), "n_heads", 3), (dropout, "p", "x"), (dropout, "inference", 3)):
        save_model(sqx.Residual(model), path)
        change_file(path, lambda it, f=field, v=value: it["structure"]["fields"]["layer"]["fields"].update({f: v}))
        with pytest.raises(ValueError, match=r"layer\.\w+ is "):
            load_model(path)


NOT_AN_ARRAY = {"named": "sequinox:LSTMState", "items": [1.0, 2.0]}
RELU = {"name": "jax.nn:relu"}


def changed_fields():
    """A model, the path of a field in its description, and what is written there; the error names the field."""
    key = jax.random.key(0)
    per_sample = lambda module: (sqx.Sequential([module]), ("layers", 0, "function"))
    block = sqx.TransformerBlock(6, 2, 8, key)
    cases = [
        (sqx.GRU(3, 4, key), (), "gamma", NOT_AN_ARRAY),
        (sqx.GRU(3, 4, key), (), "gamma", RELU),
        (sqx.GRU(3, 4, key), (), "gamma", {"list": []}),
        (*per_sample(eqx.nn.Linear(4, 2, key=key)), "in_features", 7),
        (*per_sample(eqx.nn.Linear(4, 2, key=key)), "out_features", 7),
        (*per_sample(eqx.nn.Embedding(5, 2, key=key)), "num_embeddings", 7),
        (*per_sample(eqx.nn.LayerNorm(4)), "shape", {"tuple": [7]}),
        (*per_sample(eqx.nn.RMSNorm(4)), "shape", {"tuple": [7]}),
        (eqx.nn.Conv1d(3, 2, 5, key=key), (), "in_channels", 7),
        (eqx.nn.Conv1d(3, 2, 5, key=key), (), "kernel_size", {"tuple": [7]}),
        (eqx.nn.GRUCell(3, 2, key=key), (), "hidden_size", 7),
        (eqx.nn.LSTMCell(3, 2, key=key), (), "input_size", 7),
        (eqx.filter(sqx.GRU(3, 4, key), lambda x: False), (), "n_hidden", -1),
        (eqx.nn.Dropout(0.5), (), "p", 7.0),
        (sqx.Dropout(0.5), (), "p", 7),
        (sqx.Dropout(0.5), (), "p", 1),
        (sqx.Zoneout(sqx.GRU(3, 4, key), 0.5), (), "rates", {"tuple": [7.0]}),
        (net(), (), "n_in", 7),
        (net(), (), "n_out", 7),
        (net(), ("layers", 0), "n_in", 7),
        (sqx.Bidirectional(sqx.GRU(3, 4, key), sqx.GRU(3, 4, key)), (), "n_out", 7),
        (sqx.Parallel([sqx.GRU(3, 4, key), sqx.GRU(3, 4, key)]), (), "n_out", 7),
        (sqx.MultiHeadSelfAttention(6, 2, key), (), "n_out", 7),
        (block, (), "cross_attention", {"list": []}),
        (block, (), "feed_forward", RELU),
        *((net(), (), "layers", {"tuple": [layer]}) for layer in (3, "x", {"list": []}, RELU)),
        (sqx.Parallel([dense(), dense()]), (), "layers", {"tuple": [3.0]}),
        (sqx.Residual(sqx.GRU(4, 4, key)), (), "layer", {"list": [1]}),
        (sqx.PerSample(jnp.tanh), (), "function", 3),
    ]
    return [pytest.param(*case, id=f"{type(case[0]).__name__}.{case[2]}-{i}") for i, case in enumerate(cases)]


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(("model", "where", "field", "value"), changed_fields())
def test_no_field_contradicts_its_class_or_the_other_fields(tmp_path, model, where, field, value):
    path = tmp_path / "m.safetensors"
    save_model(model, path)

    def change(it):
        node = it["structure"]
        for name in where:
            node = node["tuple"][name] if isinstance(name, int) else node["fields"][name]
        node["fields"][field] = value

    change_file(path, change)
    with pytest.raises(ValueError, match=rf"load_model: {path}: the description of the model is wrong: .*{field}"):
        load_model(path)


class Sloppy(eqx.Module):
    """As people write: None where an int is said, an array for a number, a list for a tuple."""

    w: jax.Array
    scale: float
    n: int = eqx.field(static=True)
    rates: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, scale: Any, n: Any, rates: Any):
        self.w, self.scale, self.n, self.rates = jnp.ones(3), scale, n, rates


def edited():
    key = jax.random.key(0)
    return [
        eqx.tree_at(lambda d: d.W, dense(), jnp.ones((2, 3), jnp.bfloat16)),
        eqx.tree_at(lambda d: d.b, dense(), None),
        eqx.filter_vmap(lambda k: sqx.GRU(3, 4, k))(jax.random.split(key, 5)),  # five in one
        eqx.filter(net(), lambda x: False),
        eqx.nn.inference_mode(sqx.Dropout(0.5)),
        eqx.tree_at(lambda d: d.p, eqx.nn.Dropout(0.5), jnp.array(0.25)),
        eqx.tree_at(lambda d: d.W, dense(), Sloppy(1, 2, (0.5,))),  # a weight that somebody computes
        eqx.filter_vmap(lambda k: sqx.Sequential([eqx.nn.Linear(3, 4, key=k)]))(jax.random.split(key, 5)),
        sqx.cast(sqx.transformer_encoder(3, 4, 2, 8, 2, 5, key), jnp.bfloat16),
        eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, key=key),
        Sloppy(jnp.array(2.0), None, [0.1, 1]),
        Sloppy(2, 3, (0.1,)),
    ]


@pytest.mark.parametrize("model", edited(), ids=lambda m: type(m).__name__)
def test_models_that_somebody_has_edited_still_come_back(tmp_path, model):
    save_model(model, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors", trust=(__name__,))
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert eqx.tree_equal(again, model)


# ---- the sum ---------------------------------------------------------------------------------------------------------


def weight(axis, i):
    """splitmix64 of a place, made odd; in Python's integers."""
    z = (i + ((axis + 1) << 48)) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) | 1


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64", "bool", "complex64", ml_dtypes.bfloat16])
def test_the_sum_is_that_of_its_definition(dtype):
    array = (np.random.default_rng(0).normal(size=(3, 4, 5)) * 3).astype(dtype)
    words = array.view(f"u{array.itemsize}") if array.itemsize < 8 else array[..., None].view(np.uint32)
    expected = 0
    for place in np.ndindex(words.shape):
        expected += int(words[place]) * functools.reduce(lambda a, b: a * b, map(weight, range(4), place))
    assert array_sum(array) == expected % 2**64
    assert array_sum(np.asfortranarray(array)) == array_sum(array)
    assert array_sum(array.astype(array.dtype.newbyteorder())) == array_sum(array)
    scalar = array[1, 2, 3:4].reshape(())
    assert array_sum(scalar) == sum(int(n) * weight(0, i) for i, n in enumerate(words[1, 2, 3].reshape(-1))) % 2**64


def test_long_axes_are_summed_in_parts_and_complex_numbers_in_four():
    array = np.random.default_rng(0).normal(size=70_001).astype(np.float32)
    words, weights = array.view(np.uint32), [weight(0, i) for i in range(array.size)]
    assert array_sum(array) == sum(int(w) * r for w, r in zip(words, weights, strict=True)) % 2**64
    wide = array[:6].reshape(2, 3) + 1j
    fours = wide.astype(np.complex128).view(np.uint32).reshape(2, 3, 4)
    assert array_sum(wide.astype(np.complex128)) == array_sum(fours)


def test_the_sum_of_the_parts_is_that_of_the_whole_however_it_is_cut():
    array = np.random.default_rng(0).normal(size=(6, 8, 5)).astype(np.float32)
    for rows, columns in ((1, 8), (3, 2), (6, 4), (2, 3)):
        parts = [
            array_sum(array[i : i + rows, j : j + columns], (i, j, 0))
            for i in range(0, 6, rows)
            for j in range(0, 8, columns)
        ]
        assert sum(parts) % 2**64 == array_sum(array)
    assert add_up([own_sums({"a": jnp.asarray(array)})]) == {"a": f"{array_sum(array):016x}"}


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_every_single_changed_bit_two_exchanged_numbers_and_other_constants_change_the_sum(dtype):
    array = np.random.default_rng(0).normal(size=(4, 5)).astype(dtype)
    words, before = array.view(f"u{array.itemsize}"), array_sum(array)
    for place in np.ndindex(words.shape):
        for bit in range(8 * array.itemsize):
            changed = words.copy()
            changed[place] ^= words.dtype.type(1 << bit)
            assert array_sum(changed) != before
    exchanged = [array[::-1], array[:, ::-1], np.roll(array, 1), array.T.reshape(4, 5)]
    assert len({array_sum(a) for a in (array, *exchanged)}) == 5
    for shape in ((1024, 2048), (4096,), (64, 64, 64)):
        assert len({array_sum(np.full(shape, value, dtype)) for value in (0, 1, 2, 4)}) == 4


def test_the_buffer_of_what_was_summed_can_still_be_donated():
    a = jnp.arange(5000.0)
    own_sums({"a": a})
    before = a.unsafe_buffer_pointer()
    assert jax.jit(lambda x: x + 1, donate_argnums=0)(a).unsafe_buffer_pointer() == before
