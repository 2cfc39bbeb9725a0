"""What ranks send each other, and whether they answer the known question alike."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from ..detect.rank_answers import RankAnswers, told_value
from ..signals.probe import Probe
from ..signals.probe_environment import key_of
from .comparison import answer_of
from .known import environment_of
from .line import Bench, Line, Outcome, Trial
from .patterns import SIZES, Damage, in_words, named, patterns_for, sent
from .ways import Table

SECTION: Final = "between ranks"
_SIZES: Final = SIZES[:3]  # every rank sends to every other one
_PATIENCE: Final = timedelta(minutes=5)  # for ranks that are slower in the lines before

# sends a tensor to a rank, and returns what comes from another one
Swap = Callable[[torch.Tensor, int, int], torch.Tensor]
# gives every rank what each rank gives
Gather = Callable[[Any], Sequence[Any]]


def world_size() -> int:
    """How many processes torchrun, or whatever started this one, says there are."""
    return int(os.environ.get("WORLD_SIZE", 1))


def join(devices: Sequence[torch.device]) -> None:
    """Become a rank, by the environment that torchrun sets."""
    if dist.is_initialized():
        return
    cuda = any(device.type == "cuda" for device in devices)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)


def leave() -> None:
    """Be no rank any more."""
    dist.destroy_process_group()


def of_this_rank(devices: Sequence[torch.device]) -> list[torch.device]:
    """The device that is this rank's, by its number on the machine."""
    place = int(os.environ.get("LOCAL_RANK", 0))
    return [devices[place % len(devices)]] if devices else []


def received(rank: int, world: int, swap: Swap, sizes: Sequence[int] = _SIZES) -> dict[int, Damage]:
    """What this rank received from each other one, compared with what was sent.

    In round n each rank sends to the one n places further on, so that no link is used twice.
    What is sent follows from the sender's number: the receiver makes it too.
    """
    found = {}
    for further in range(1, world):
        target, source = (rank + further) % world, (rank - further) % world
        damage = found[source] = Damage()
        for size in sizes:
            for pattern in patterns_for(size):
                arrived = swap(sent(pattern, size, rank), target, source)
                damage.note(named(pattern, size), sent(pattern, size, source), arrived)
    return found


def table_of(world: int, everybody: Sequence[dict[int, Damage]]) -> Table:
    """From what each rank received, in the order of ranks, to a table of rank and rank."""
    table = Table([f"rank {rank}" for rank in range(world)])
    for target, damages in enumerate(everybody):
        for source, damage in damages.items():
            table.ways[source, target] = damage
    return table


def _by_group(device: torch.device, tensor: torch.Tensor, target: int, source: int) -> torch.Tensor:
    """`Swap` over the process group."""
    outgoing = tensor.to(device)
    incoming = torch.empty_like(outgoing)
    operations = [
        dist.P2POp(dist.isend, outgoing, target),
        dist.P2POp(dist.irecv, incoming, source),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    return incoming.cpu()


def _gathered(mine: Any) -> Sequence[Any]:
    theirs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(theirs, mine)
    return theirs


def exchanged(device: torch.device, bench: Bench) -> Outcome:
    """Every rank sends every pattern to every other one."""
    del bench
    world = dist.get_world_size()
    mine = received(dist.get_rank(), world, partial(_by_group, device))
    outcome = table_of(world, _gathered(mine)).outcome(f"over {dist.get_backend()}")
    if outcome.verdict == "FAIL":
        return outcome
    return Outcome("PASS", f"{outcome.reason}, up to {in_words(_SIZES[-1])}", outcome.detail)


def answers(device: torch.device, bench: Bench) -> Outcome:
    """Ranks with the same kind of device and the same settings answer the known question alike."""
    del bench
    answer = answer_of(Probe(device))
    mine = (key_of(environment_of(device, "float32")), answer.hash)
    everybody = _gathered(mine)
    values = {rank: told_value([given]) for rank, given in enumerate(everybody)}
    detail = {"answers": [{"environment": key, "hash": found} for key, found in everybody]}
    alerts = RankAnswers(0).judge(0, values)
    if alerts:
        return Outcome("FAIL", "; ".join(alert.detail["text"] for alert in alerts), detail)
    kinds = len({key for key, _ in everybody})
    if kinds == len(everybody) and len(everybody) > 1:
        return Outcome(
            "INCOMPLETE", "every rank has another kind of device or other settings", detail
        )
    return Outcome("PASS", f"{len(everybody)} ranks, {kinds} kinds of device and settings", detail)


def trials_of(bench: Bench) -> list[Trial]:
    """The lines of several ranks; each rank tries the same ones in the same order."""
    cuda = [device for device in bench.devices if device.type == "cuda"]
    mine = cuda[0] if cuda else None
    host = torch.device("cpu")
    found = [Trial(SECTION, "what ranks send each other", partial(exchanged, host))]
    if mine is not None:
        found.append(Trial(SECTION, "what devices send each other", partial(exchanged, mine)))
    found.append(Trial(SECTION, "the known answer", partial(answers, mine or host)))
    return found


def of_all_ranks(lines: list[Line]) -> list[Line]:
    """Each line with the worst verdict of any rank, and which ranks it was; on every rank alike."""
    return [worst(same) for same in matched(_gathered(lines))]


def matched(everybody: Sequence[Sequence[Line]]) -> list[dict[int, Line]]:
    """Lines of all ranks that belong together, by rank: by their place in their section.

    A rank may have fewer of them, on a machine of another kind, and its devices other names.
    """
    found: dict[tuple[str, int], dict[int, Line]] = {}
    for rank, lines in enumerate(everybody):
        seen: Counter[str] = Counter()
        for line in lines:
            found.setdefault((line.section, seen[line.section]), {})[rank] = line
            seen[line.section] += 1
    return list(found.values())


def worst(same: Mapping[int, Line]) -> Line:
    """One line of what the ranks say of it."""
    order = ("FAIL", "INCOMPLETE", "PASS")
    verdict = min((line.outcome.verdict for line in same.values()), key=order.index)
    ranks = [rank for rank, line in same.items() if line.outcome.verdict == verdict]
    chosen = same[ranks[0]]
    outcome = chosen.outcome
    if len(ranks) == len(same):
        return chosen
    which = f"rank {', '.join(map(str, ranks))}: {outcome.reason}"
    return Line(
        chosen.section, chosen.name,
        Outcome(verdict, which, outcome.detail | {"ranks": ranks}, outcome.table), chosen.seconds,
    )  # fmt: skip
