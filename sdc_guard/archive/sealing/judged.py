"""Whether files hold what a step left: the trace's digests against the files' own. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...digest import Digest
from ..manifest import Status
from .seal_file import SealedTensor

Key = tuple[str, str]
"""Kind and name of the layer, as in the tables of a trace."""
PARAMETER: Final = "param"
_NAMED: Final = 3
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
    by_digest: dict[Digest, list[Key]] = {}
    for key, one in left.items():
        by_digest.setdefault(one.digest, []).append(key)
    matched: dict[str, Key] = {}
    taken: set[Key] = set()
    for name, one in found.items():
        if keys := by_digest.get(one.digest):
            # tensors of equal content, moments of zeros say, are told apart by name or order
            matched[name] = min(keys, key=lambda key: (not _is_named(name, key), key in taken))
            taken.add(matched[name])
    differing = {
        name: key for name in matched if (key := _misplaced(name, found[name].digest, left))
    }
    there = {one.digest for one in found.values()}
    missing = {key: one for key, one in left.items() if one.digest not in there}
    absent, converted = [], []
    free = [name for name in found if name not in matched]
    matched = {name: key for name, key in matched.items() if name not in differing}
    saved_kinds = {name.rpartition(".")[2] for name in found}
    for key, one in missing.items():
        name, same_dtype = _candidate(key, one, found, free)
        if name and same_dtype:
            differing[name] = key
            free.remove(name)
        elif name:
            converted.append(key)
        elif one.trained and (key[0] == PARAMETER or key[0] in saved_kinds):
            absent.append(key)
    return Judged(matched, differing, tuple(absent), tuple(converted))


def _misplaced(name: str, digest: Digest, left: Mapping[Key, Left]) -> Key | None:
    """The parameter of a tensor's name, where the tensor has the bytes of another one instead."""
    own = _plain(name)
    named = [key for key in left if key[0] == PARAMETER and _ends(own, _plain(key[1]))]
    if not named or any(left[key].digest == digest for key in named):
        return None
    return max(named, key=lambda key: len(key[1]))


def _candidate(
    key: Key, left: Left, found: Mapping[str, SealedTensor], free: list[str]
) -> tuple[str, bool]:
    """The tensor in the files that a tensor of the trace should be, and whether its dtype is so."""
    named = [
        name for name in free if _is_named(name, key) and _fits(found[name].shape, left.shape, key)
    ]
    if not named and key[0] != PARAMETER:  # optimizers number their parameters
        last = [name for name in free if name.endswith(f".{key[0]}") and "state." in name]
        named = [name for name in last if _fits(found[name].shape, left.shape, key)]
    for name in named:
        if not left.dtype or found[name].dtype == left.dtype:
            return name, True
    return (named[0], False) if named else ("", False)


def _fits(shape: tuple[int, ...], layer: tuple[int, ...], key: Key) -> bool:
    return key[0] == "step" or shape == layer


def _is_named(name: str, key: Key) -> bool:
    """Whether a name in a file is that of a tensor of the trace, with something before it."""
    kind, layer = key
    own, other = _plain(name), _plain(layer)
    if kind != PARAMETER:
        return own[-1:] == [kind] and _ends(own[:-1], other)
    return _ends(own, other) or _ends(other, own)


def _ends(long: list[str], short: list[str]) -> bool:
    return bool(short) and long[-len(short) :] == short


def _plain(name: str) -> list[str]:
    return [part for part in name.replace("/", ".").split(".") if part not in _WRAPPERS]


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
        other = {key: found[name].digest for name, key in judged.differing.items()}
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
