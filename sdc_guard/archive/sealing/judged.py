"""Whether files hold what a step left: the trace's digests against the files' own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...digest import Digest
from ..manifest import Status
from .seal_file import SealedTensor

Key = tuple[str, str]
"""Kind and name of the layer, as in the tables of a trace."""
PARAMETER: Final = "param"
_NAMED: Final = 3
_COUNTER: Final = "step"
_WRAPPERS: Final = ("_orig_mod", "module")


@dataclass(frozen=True)
class Left:
    """A tensor of the trace after a step.

    Attributes:
        digest: of the whole tensor.
        shape: of its layer.
        dtype: of it, without "torch."; "" where that is not known.
        trained: whether the optimizers may write to it.
    """

    digest: Digest
    shape: tuple[int, ...] = ()
    dtype: str = ""
    trained: bool = True


@dataclass(frozen=True)
class Judged:
    """What comparing showed.

    Attributes:
        matched: name of a tensor in the files to the tensor of the trace that it is.
        differing: name in the files to the tensor of the trace that it should be and is not.
        absent: trained parameters, and moments of an optimizer that was saved, that are not there.
        converted: parameters that were saved in another dtype, whose bits say nothing.
    """

    matched: Mapping[str, Key] = field(default_factory=dict)
    differing: Mapping[str, Key] = field(default_factory=dict)
    absent: tuple[Key, ...] = ()
    converted: tuple[Key, ...] = ()


def compared(found: Mapping[str, SealedTensor], left: Mapping[Key, Left]) -> Judged:
    """Match tensors in files with those of a trace, by their content.

    What has the digest of a tensor of the trace is that tensor, unless its name is that of another
    parameter. Names are asked further of what nothing in the files has the digest of.

    Args:
        found: tensors in the files, by name.
        left: what a step left.
    """
    by_digest: dict[Digest, dict[Key, None]] = {}
    for key, wanted in left.items():
        by_digest.setdefault(wanted.digest, {})[key] = None
    there = {one.digest for one in found.values()}
    untaken = {digest: dict(keys) for digest, keys in by_digest.items() if digest in there}
    layers = _Layers(left)
    matched: dict[str, Key] = {}
    differing: dict[str, Key] = {}
    for name, one in found.items():
        if one.digest not in untaken:
            continue
        named = layers.named(name)
        fitting = [key for key in named if key in by_digest[one.digest]]
        parameters = [key for key in named if key[0] == PARAMETER]
        if parameters and not fitting:
            differing[name] = parameters[0]  # the bytes of another one
            continue
        # tensors of equal content, moments of zeros say, are told apart by name or order
        free = untaken[one.digest]
        key = next(iter([*fitting, *islice(free, 1), *islice(by_digest[one.digest], 1)]))
        free.pop(key, None)
        matched[name] = key
    missing = {key: one for key, one in left.items() if one.digest not in there}
    return _with_missing(found, missing, matched, differing)


def _with_missing(
    found: Mapping[str, SealedTensor],
    missing: Mapping[Key, Left],
    matched: dict[str, Key],
    differing: dict[str, Key],
) -> Judged:
    """What the tensors of the trace have become that nothing in the files has the digest of."""
    absent, converted = [], []
    free = _Free({name: one for name, one in found.items() if name not in matched | differing})
    saved_kinds = {name.rpartition(".")[2] for name in found}
    for key, wanted in missing.items():
        name, same_dtype = free.take(key, wanted)
        if name and same_dtype:
            differing[name] = key
        elif name:
            converted.append(key)
        elif wanted.trained and (key[0] == PARAMETER or key[0] in saved_kinds):
            absent.append(key)
    return Judged(matched, differing, tuple(absent), tuple(converted))


class _Layers:
    """The tensors of a trace by the names that they have in files, with anything before them."""

    def __init__(self, left: Mapping[Key, Left]) -> None:
        self._keys: dict[tuple[str, ...], Key] = {}
        for kind, layer in left:
            end = () if kind == PARAMETER else (kind,)
            self._keys[*_plain(layer), *end] = kind, layer

    def named(self, name: str) -> list[Key]:
        """Those that a name ends with, the longest first."""
        own = _plain(name)
        return [self._keys[end] for end in _endings(own) if end in self._keys]


class _Free:
    """Tensors in files that are none of the trace's by their content."""

    def __init__(self, found: Mapping[str, SealedTensor]) -> None:
        self._found = dict(found)
        self._by_end: dict[tuple[str, ...], list[str]] = {}
        self._whole: dict[tuple[str, ...], str] = {}
        self._moments: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for name, one in found.items():
            own = _plain(name)
            self._whole[own] = name
            for end in _endings(own):
                self._by_end.setdefault(end, []).append(name)
            if "state" in own:  # of an optimizer, which numbers its parameters
                shape = () if own[-1] == _COUNTER else one.shape
                self._moments.setdefault((own[-1], shape), []).append(name)

    def take(self, key: Key, wanted: Left) -> tuple[str, bool]:
        """The one that a tensor of the trace should be, and whether its dtype is so; ("", False)
        where there is none."""
        kind, layer = key
        if kind == PARAMETER:
            own = _plain(layer)
            shorter = [self._whole[end] for end in _endings(own) if end in self._whole]
            names = [*self._by_end.get(own, ()), *shorter]
            names = [x for x in names if x in self._found and self._found[x].shape == wanted.shape]
        else:
            shape = () if kind == _COUNTER else wanted.shape
            named = self._by_end.get((*_plain(layer), kind), [])
            names = [x for x in named if x in self._found]
            numbered = self._moments.get((kind, shape), [])
            while not names and numbered:
                names = [x for x in [numbered.pop(0)] if x in self._found]
        same = [x for x in names if not wanted.dtype or self._found[x].dtype == wanted.dtype]
        if same:
            del self._found[same[0]]
        return (same[0], True) if same else ((names or [""])[0], False)


def _endings(own: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (own[start:] for start in range(len(own)))


def _plain(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.replace("/", ".").split(".") if part not in _WRAPPERS)


def in_words(key: Key) -> str:
    """A tensor of the trace in a sentence."""
    kind, layer = key
    return layer if kind == PARAMETER else f"{kind} of {layer}"


def judgement(
    judged: Judged,
    left: Mapping[Key, Left],
    found: Mapping[str, SealedTensor],
    step: int,
    whose: Callable[[Mapping[Key, Digest]], int | None],
) -> tuple[Status, list[str]]:
    """Status and reasons, from the comparison alone.

    Args:
        judged: the comparison.
        left: what the step left; {} where that is not known.
        found: tensors in the files.
        step: whose result the files should hold.
        whose: the step that left tensors with these digests, if any did.
    """
    if not left:
        return "untested", [f"no digests of what step {step} left"]
    if judged.differing:
        # which moment a numbered one is, is no more than likely
        parameters = {n: key for n, key in judged.differing.items() if key[0] == PARAMETER}
        named = parameters or judged.differing
        other = {key: found[name].digest for name, key in named.items()}
        return "suspect", list(_differences(judged, step, whose(other)))
    if not any(key[0] == PARAMETER for key in (*judged.matched.values(), *judged.converted)):
        return "untested", [f"it holds no parameter that step {step} left"]
    if judged.converted:
        what = _listed([in_words(key) for key in judged.converted])
        return "untested", [f"saved in another dtype, so not compared: {what}"]
    if judged.absent:
        return "untested", [f"not in it: {_listed([in_words(key) for key in judged.absent])}"]
    return "clean", []


def _differences(judged: Judged, step: int, other: int | None) -> Iterator[str]:
    if other is not None:
        how = "a save that was overtaken by the training" if other > step else "an older state"
        yield f"holds step {other}, not step {step}: {how}, or steps that are counted otherwise"
        return
    for key in list(judged.differing.values())[:_NAMED]:
        yield f"{in_words(key)}: bytes differ from what step {step} left"
    if (more := len(judged.differing) - _NAMED) > 0:
        yield f"and {more:,} more tensors"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
