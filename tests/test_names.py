"""Every public name can be imported from the package itself and from its subpackage."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sequinox as sqx
from sequinox._elsewhere import ELSEWHERE

ROOMS = (
    *("attention", "convolution", "decoding", "filters", "interop", "layers", "models", "recurrent"),
    *("tasks", "testing", "train"),
)


def public_names(room: str) -> list[str]:
    text = (Path(sqx.__file__).parent / room / "__init__.py").read_text()
    return re.findall(r"\b(\w+) as ((?!_)\1)\b", text)


@pytest.mark.parametrize("room", ROOMS)
def test_from_the_package_and_the_subpackage(room: str):
    module = importlib.import_module(f"sequinox.{room}")
    names = [name for name, _ in public_names(room)]
    assert names and sorted(names) == dir(module) == module.__all__
    assert [name for name in names if getattr(sqx, name) is not getattr(module, name)] == []


def test_the_package_shows_every_public_name_and_nothing_else():
    here = re.findall(r"\b(\w+) as \1\b", Path(sqx.__file__).read_text())
    everything = {*here, *ROOMS, *(name for room in ROOMS for name, _ in public_names(room))}
    assert dir(sqx) == sqx.__all__ == sorted(everything)
    assert {room: names.split() for room, names in sqx._LATER.items()} == {
        room: dir(getattr(sqx, room)) for room in ("interop", "tasks", "testing", "train")
    }


def fresh(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_training_is_imported_only_when_asked_for():
    fresh("""
import sys, sequinox
assert not hasattr(sequinox, "fitted") and not hasattr(sequinox, "lstm") and "fit" in dir(sequinox)
assert not {"orbax", "sequinox.train", "sequinox.interop", "sequinox.tasks", "sequinox.testing"} & set(sys.modules)
sequinox.train.fit
assert "orbax" in sys.modules and "sequinox.tasks" not in sys.modules
""")


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'sequinox' has no attribute 'transformer'"):
        _ = sqx.transformer  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ImportError):
        from sequinox import jnp  # noqa: F401  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lstm", "LSTM"),
        ("Conv1D", "Conv1d"),
        ("squared_eror", "squared_error"),
        ("GRUCell", "GRU, whose step"),
        ("gru_cell", "GRU, whose step"),
        ("Linear", "Dense"),
        ("Embedding", "equinox.nn.Embedding"),
        ("MultiHeadAttention", "MultiHeadSelfAttention"),
        ("MultiheadAttention", "MultiHeadSelfAttention"),
        ("from_pytorch", "from_torch"),
        ("MHA", "MultiHeadSelfAttention"),
        ("Attention", "MultiHeadSelfAttention"),
        ("SelfAttn", "MultiHeadSelfAttention"),
        ("TransformerLayer", "TransformerBlock"),
        ("TransformerEncoderLayer", "TransformerBlock"),
        ("TransformerEncoder", "transformer_encoder"),
        ("Conv", "Conv1d"),
        ("BiLSTM", "Bidirectional"),
        ("LSTMCell", "LSTM, whose step"),
        ("RNNCell", "RNN, whose step"),
    ],
)
def test_a_name_known_from_elsewhere_is_told_ours(name: str, meant: str):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': did you mean {meant}"):
        getattr(sqx, name)


def test_what_is_suggested_is_there():
    for known in ELSEWHERE.values():
        ours = re.findall(r"\b[A-Za-z]\w*", known.split(", ")[0].split(" or ")[0])
        assert ours[0] in ("equinox", "the") or hasattr(sqx, ours[0]), known
