"""Whether `sdc-bisect verify` names what was injected, and accuses nothing else.

    python benchmarks/bisect_campaign.py --trials 100 --clean 20 --ranks 8

Each trial trains a small network with a guard that digests everything, one bit flipped at one
site, and then asks what a user would: `verify`, and where the record shows nothing, `verify --from`
the first checkpoint. A fault counts where a twin without it, hashed by another function, has other
bits of state or gradients; what changed no bit has nothing to find, and what ends the training by
an error is not silent.

Exact means: the step is the fault's and is said to be exact. Tensor: those named are the one that
was hit (of a module's output nothing of the kind is recorded). Element: of state at rest, a stored
file and a gradient, index and bit; of a gradient that was hit after it was recorded, the index.
`ranks` are trials with two processes and DistributedDataParallel, on one of which the fault is.

The table ends with what replays cost: the time of their steps over that of the same steps in the
run, both with the same guard, measured in turns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bisect_training import EVERY, STEPS, Again, Plan, Trained, train
from machine import line, machine

from forensics.index import index
from forensics.replay import Replayer
from forensics.result import STORED_BYTES, Result
from forensics.verifying import Asked, Verification
from sdc_guard import RunReader
from sdc_guard.campaign.file_fault import damage_file
from sdc_guard.inject.fault import Fault, Touched

AT_REST = {"weight": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "step"}
SITES = (*AT_REST, "gradient", "reduced_gradient", "activation", "output_gradient", "batch", "file")
RANKED = ("weight", "exp_avg", "gradient", "activation", "wrong batch")
FIRST = EVERY  # the first checkpoint, from which is replayed what the record does not show


@dataclass
class Row:
    """What became of the trials of one site."""

    trials: int = 0
    ended: int = 0
    without_effect: int = 0
    accused_without_effect: int = 0
    step: int = 0
    tensor: int = 0
    element: int = 0
    rank: int = 0
    missed: list[str] = field(default_factory=list)

    @property
    def scored(self) -> int:
        """Trials whose fault changed a bit."""
        return self.trials - self.ended - self.without_effect


def verified(run: Path, replayer: Replayer, start: int | None = None) -> Result:
    """What `sdc-bisect verify` answers."""
    with RunReader(run) as reader:
        wanted = Asked(start=start)
        plan = Verification.of(reader, index(run), wanted, lambda line: None)
    return plan.result(replayer, lambda line: None)


def answered(run: Path, replayer: Replayer) -> Result:
    """What a user finds: by the record, or else by replaying from the first checkpoint."""
    found = verified(run, replayer)
    return verified(run, replayer, FIRST) if found.first_corrupt is None else found


def fault_of(site: str, rng: random.Random) -> Fault:
    """A flip of one bit at a step that lies after the first checkpoint."""
    step = rng.randrange(FIRST + 1, STEPS + 1)
    if site == "file":
        return Fault(
            "file", rng.choice(range(2 * EVERY, STEPS + 1, EVERY)), bits=(rng.randrange(8),)
        )
    bit = rng.randrange(6 if site == "batch" else 32)
    tensor = rng.choice(["inner", "norm", "middle", "head"])
    named = site in ("activation", "output_gradient")
    return Fault(site, step, bit=bit, tensor=tensor if named else None)  # type: ignore[arg-type]


def trial(site: str, seed: int, folder: Path, row: Row) -> None:
    """Inject one fault, and judge the answer."""
    rng = random.Random(f"{seed}/{site}")
    clean = Plan(seed=seed)
    fault = fault_of(site, rng)
    row.trials += 1
    if site == "file":
        done = train(folder, clean, hashed=True)
        path = folder / "archive" / f"step={fault.step:06d}" / "state.pt"
        touched = damage_file(path, fault, seed)
        judge_file(row, fault, touched, answered(folder, Again(clean)), path)
        return
    twin = train(folder / "twin", clean, hashed=True)
    try:
        done = train(folder / "run", replace(clean, faults=(fault,), draws=seed), hashed=True)
    except RuntimeError:  # a negative step counter ends AdamW by itself: not silent
        row.ended += 1
        return
    assert done.records, done.missed
    differ = [step for step in twin.hashes if twin.hashes[step] != done.hashes[step]]
    found = answered(folder / "run", Again(clean))
    judge(row, site, fault, done, differ, found)


def judge(
    row: Row, site: str, fault: Fault, done: Trained, differ: list[int], found: Result
) -> None:
    """Count what is right of an answer."""
    record = done.records[0]
    changed = [word for word in record.touched if word.before != word.after]
    # a bit at rest that changed is a change, whatever was computed from it
    if not changed or not (differ or site in AT_REST):
        row.without_effect += 1
        row.accused_without_effect += found.first_corrupt is not None and not changed
        return
    right = (found.first_corrupt, found.exact) == (fault.step, True)
    names = {tensor.name for tensor in found.tensors}
    kinds = {tensor.kind for tensor in found.tensors}
    tensor = names == {record.tensor} and (site not in AT_REST or kinds == {AT_REST[site]})
    element = _element(site, found, changed)
    row.step += right
    row.tensor += tensor
    row.element += element
    due = site in AT_REST or (site.endswith("gradient") and site != "output_gradient")
    if not right or (due and not (tensor and element)):
        said = f"step {found.first_corrupt} exact {found.exact} {found.kind} {sorted(kinds)}"
        row.missed.append(f"{site}: {fault}, {record.tensor} {changed[:2]}; said {said} "
                          f"{sorted(names)[:3]}: {found.evidence[:3]}")  # fmt: skip


def _element(site: str, found: Result, changed: list[Touched]) -> bool:
    """Whether each tensor named has the element that was hit, and its bits where they are known."""
    told = [tensor.change for tensor in found.tensors]
    if not told or None in told:
        return False
    if {one.index for one in told if one} != {word.index for word in changed}:
        return False
    if site not in AT_REST and site != "gradient":
        return True
    return all(
        (one.before, one.after) == (changed[0].before, changed[0].after) for one in told if one
    )


def judge_file(
    row: Row, fault: Fault, touched: tuple[Touched, ...], found: Result, path: Path
) -> None:
    """Likewise for a byte of a stored file."""
    right = (found.first_corrupt, found.exact, found.kind) == (fault.step, True, STORED_BYTES)
    if found.first_corrupt is None:
        row.without_effect += 1  # a byte of the zip's own, or none that is read
        row.missed.append(f"file: byte {touched[0].index} of {path.parent.name} not told")
        return
    row.step += right
    row.tensor += len(found.tensors) == 1
    row.element += len(found.tensors) == 1 and found.tensors[0].change is not None
    if not right:
        row.missed.append(f"file: {fault}: said {found.first_corrupt} {found.kind}")


def clean_run(seed: int, folder: Path) -> tuple[bool, list[tuple[int, float]], float]:
    """Whether a run without a fault is accused; its replays' seconds, and those of its steps."""
    done = train(folder, Plan(seed=seed))
    again = Again(Plan(seed=seed))
    found = answered(folder, again)
    return found.first_corrupt is not None or found.exit_code != 0, again.seconds, done.seconds


@dataclass(frozen=True)
class OnRanks:
    """Trains on two processes, and replays there."""

    plan: Plan

    def inputs(self) -> dict[str, Any]:
        """As `Again`."""
        return {"plan": repr(self.plan)}

    def replay(self, checkpoint: Any, until: int, target: Path, capture: Any = None) -> Path:
        """As `Again`, on each rank."""
        on_ranks(target, self.plan, until, checkpoint, capture)
        return target


def on_ranks(
    run: Path, plan: Plan, until: int = STEPS, start: Any = None, capture: Any = None
) -> None:
    """Train with two ranks, each a fork of this process."""
    run.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as meeting:
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=_rank, args=(rank, Path(meeting), run, plan, until, start, capture))
            for rank in range(2)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0, 0]


def _rank(
    rank: int, meeting: Path, run: Path, plan: Plan, until: int, start: Any, capture: Any
) -> None:
    where = f"file://{meeting / 'store'}"
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=limit)
    if start is None:
        done = train(run, plan, until, hashed=True)
        (run / f"hashes-{rank}.json").write_text(json.dumps(done.hashes))
    else:
        Again(plan).replay(start, until, run, capture)
    dist.destroy_process_group()


def ranked_trial(site: str, seed: int, folder: Path, row: Row) -> None:
    """A fault on one of two ranks; its rank must be named, too."""
    rng = random.Random(f"{seed}/{site}")
    rank = rng.randrange(2)
    plan = clean = Plan(seed=seed)
    if site == "wrong batch":
        step = rng.randrange(FIRST + 1, STEPS + 1)
        plan = replace(clean, wrong_batch=(rank, step))
    else:
        fault = replace(fault_of(site, rng), rank=rank, bit=rng.randrange(20, 30))
        step = fault.step
        plan = replace(clean, faults=(fault,), draws=seed)
    on_ranks(folder / "twin", clean)
    on_ranks(folder / "run", plan)
    row.trials += 1
    if all(_same_hashes(folder, rank) for rank in range(2)):
        row.without_effect += 1
        return
    found = answered(folder / "run", OnRanks(clean))
    right = (found.first_corrupt, found.exact) == (step, True)
    row.step += right
    row.rank += found.rank == rank
    if not right or found.rank != rank:
        said = f"step {found.first_corrupt} rank {found.rank} {found.kind}: {found.evidence[:3]}"
        row.missed.append(f"{site} at step {step} on rank {rank}: said {said}")


def _same_hashes(folder: Path, rank: int) -> bool:
    one, other = (folder / name / f"hashes-{rank}.json" for name in ("twin", "run"))
    return one.read_text() == other.read_text()


def replay_cost(seed: int, folder: Path, rounds: int) -> list[float]:
    """Seconds of replayed steps over those of the same steps in the run, in turns."""
    plan = Plan(seed=seed)
    train(folder / "run", plan)
    start = next(one for one in index(folder / "run") if one.step == FIRST)
    ratios = []
    for number in range(rounds):
        again = Again(plan)
        run_first = number % 2 == 0
        # the same steps by the same resume, as part of the run and as a replay
        first = _timed(folder / f"a{number}", plan, start.path) if run_first else 0.0
        again.replay(start, STEPS, folder / f"b{number}")
        first = first or _timed(folder / f"a{number}", plan, start.path)
        ratios.append(again.seconds[0][1] / first)
    return ratios


def _timed(folder: Path, plan: Plan, resume: Path) -> float:
    return train(folder, plan, resume=resume).seconds


def each(
    sites: tuple[str, ...], count: int, seed: int, run: Callable[[str, int, Path, Row], None]
) -> dict[str, Row]:
    """Run trials, the sites in turn."""
    rows = {site: Row() for site in sites}
    for number in range(count):
        site = sites[number % len(sites)]
        with tempfile.TemporaryDirectory(prefix="bisect-campaign-") as folder:
            run(site, seed + number, Path(folder), rows[site])
        row = rows[site]
        print(f"{number + 1}/{count} {site}: {row.step}/{row.scored}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10, help="of the measurement of replays")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(line({**machine(), "torch": torch.__version__, "seed": args.seed}))
    print(
        "| site | trials | ended by itself | changed bits | step exact | tensor | element | rank |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows = each(SITES, args.trials, args.seed, trial)
    ranked = each(RANKED, args.ranks, args.seed + 10_000, ranked_trial)
    missed: Counter[str] = Counter()
    for site, row in [*rows.items(), *((f"{s}, 2 ranks", r) for s, r in ranked.items())]:
        rank = row.rank if "ranks" in site else ""
        cells = [row.trials, row.ended, row.scored, row.step, row.tensor, row.element, rank]
        print(f"| {site} | " + " | ".join(map(str, cells)) + " |", flush=True)
        missed.update(row.missed)
    accused = 0
    for number in range(args.clean):
        with tempfile.TemporaryDirectory(prefix="bisect-campaign-") as folder:
            accused += clean_run(args.seed + 20_000 + number, Path(folder))[0]
    print(f"clean runs accused: {accused} of {args.clean}")
    if args.rounds:
        with tempfile.TemporaryDirectory(prefix="bisect-campaign-") as folder:
            ratios = replay_cost(args.seed, Path(folder), args.rounds)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"a replayed step over a step of the run: {statistics.median(ratios):.2f} ({spread})")
    for text in missed:
        print(f"  {text}")


if __name__ == "__main__":
    main()
