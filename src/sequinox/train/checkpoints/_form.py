"""The one form that descriptions have: what is stored beside arrays, and read from there, checked field by field."""

from typing import Any, NamedTuple

from ._checksum import describe_sum

_CHECKSUM = "checksum"


class Leaf(NamedTuple):
    """An array: its shape, its dtype (a typed key's names its implementation), and its checksum where it is stored."""

    shape: tuple[int, ...]
    dtype: str
    sum: str | None = None


class ModelDescription(NamedTuple):
    """A model: its structure as `describe` returns it, or why there is none."""

    structure: Any
    undescribed: str | None


class Description(NamedTuple):
    """What is written about a checkpoint, beside its arrays."""

    leaves: dict[str, Leaf]
    model: ModelDescription | None
    data_states: list[Any]
    best: tuple[str | None, str]
    config: dict[str, Any] | None
    extra: dict[str, Any]
    metrics: dict[str, float]


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its checksum."""
    return {**content, _CHECKSUM: describe_sum(content)}


def leaves_to_json(leaves: dict[str, Leaf]) -> dict[str, Any]:
    """What `seal` is given for `leaves`."""
    return {path: leaf._asdict() | {"shape": list(leaf.shape)} for path, leaf in leaves.items()}


def read_checkpoint(raw: Any, where: str) -> Description:
    """The description of a checkpoint.

    Raises:
        ValueError: it has not the form that `Checkpoints` writes.
        OSError: its checksum is wrong.
    """
    content = _Content(_open(raw, where), where)
    best = content.get("best", list)
    if len(best) != 2 or not isinstance(best[0], str | None) or best[1] not in ("min", "max"):
        raise content.wrong("best", "a metric's name and 'min' or 'max'")
    states = content.get("data_states", list)
    if not states:
        raise content.wrong("data_states", "a list of each process's own")
    metrics = content.get("metrics", dict)
    if not all(type(value) in (int, float) for value in metrics.values()):
        raise content.wrong("metrics", "numbers")
    return Description(
        leaves=_leaves(content),
        model=None if content.get("model") is None else _model(content.inner("model")),
        data_states=states,
        best=(best[0], best[1]),
        config=None if content.get("config") is None else content.get("config", dict),
        extra=content.get("extra", dict),
        metrics=metrics,
    )


def read_file(raw: Any, where: str) -> tuple[dict[str, Leaf], ModelDescription]:
    """The leaves and the model of a `.safetensors` file.

    Raises:
        ValueError: the description has not the form that `save_model` writes.
        OSError: its checksum is wrong.
    """
    content = _Content(_open(raw, where), where)
    return _leaves(content), _model(content)


def _open(raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict) or not isinstance(raw.get(_CHECKSUM), str):
        raise ValueError(f"{where} is damaged, or not of sequinox: it has no checksum")
    content = {key: value for key, value in raw.items() if key != _CHECKSUM}
    try:
        expected = describe_sum(content)
    except RecursionError:
        raise ValueError(f"{where} is damaged: it is nested too deeply") from None
    if raw[_CHECKSUM] != expected:
        raise OSError(f"{where} is damaged: its checksum is wrong")
    return content


class _Content:
    """A dictionary from a file; what is missing in it or of another kind is an error."""

    def __init__(self, content: dict[str, Any], where: str):
        self.content, self.where = content, where

    def get(self, name: str, kind: type | None = None) -> Any:
        """A value by its name; `kind`: one of `_KINDS` that it must be."""
        if name not in self.content:
            raise ValueError(f"{self.where} is damaged: it has no {name!r}")
        if kind is not None and not isinstance(self.content[name], kind):
            raise self.wrong(name, _KINDS[kind])
        return self.content[name]

    def inner(self, name: str) -> "_Content":
        return _Content(self.get(name, dict), f"{self.where.removesuffix(',')}, at {name!r},")

    def wrong(self, name: str, what: str) -> ValueError:
        try:
            came = f"{self.content[name]!r:.100}"
        except RecursionError:
            came = "what is nested too deeply"
        return ValueError(f"{self.where} is damaged: {name!r} must be {what}, got {came}")


_KINDS = {dict: "a dictionary", list: "a list", str: "a text"}


def _leaves(content: _Content) -> dict[str, Leaf]:
    leaves = content.inner("leaves")
    return {path: _leaf(leaves.inner(path)) for path in leaves.content}


def _leaf(content: _Content) -> Leaf:
    shape = content.get("shape", list)
    if not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise content.wrong("shape", "sizes")
    return Leaf(tuple(shape), content.get("dtype", str), None if 0 in shape else content.get("sum", str))


def _model(content: _Content) -> ModelDescription:
    if "undescribed" in content.content:
        return ModelDescription(None, content.get("undescribed", str))
    return ModelDescription(content.get("structure"), None)
