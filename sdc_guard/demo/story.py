"""Trains the sample with one bit flipped, then finds the bit with the public commands.

The search sees nothing of the injector's journal; it is opened at the end, to compare.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CommandFailed, UsageError
from ..inject.fault import Draw, InjectionRecord
from ..inject.injector import read_journal
from ..store.reader import RunReader

STEPS = 120
EVERY = 20
MARK = "demo.json"

Say = Callable[[str], None]


def tell(seed: int, fault: str, run: Path, say: Say) -> bool:
    """Run the demonstration.

    Args:
        seed: draws step, tensor, element and bit of the fault.
        fault: a site of `inject.fault.SITES`, or "none".
        run: the run's folder.
        say: called with each line.

    Returns:
        whether what was located is what was injected; without a fault, whether nothing was
        accused.

    Raises:
        UsageError: `run` holds something that is not a demo's.
        CommandFailed: the training or sdc-bisect failed.
    """
    _clear(run)
    # not before the second checkpoint, so that there is a clean one to replay from
    step = EVERY + 2 + Draw(seed, fault, 0, 0).below(STEPS - 2 * EVERY, "step")
    what = "no fault" if fault == "none" else f"one bit of one {fault} flipped at some step"
    say(f"1. Training a GPT of 0.8M parameters for {STEPS} steps, {what} (seed {seed}).")
    _train(run, [] if fault == "none" else ["--fault", f"{fault}@{step}"], seed)
    say("\n2. What the guard recorded while it trained:")
    _show_recorded(run, say)
    say("\n3. sdc-bisect run: which checkpoint is the first corrupt one?")
    bracket = _bisect("run", run, say)
    if fault == "none":
        return _end_clean(run, bracket, say)
    say("\n4. sdc-bisect verify --recorded: which step, tensor, element and bit?")
    located = _bisect("verify", run, say, "--recorded")
    return _compare(read_journal(run), located, say)


def sample_script() -> Path:
    """The sample training script: beside the packages in a checkout, inside one in a wheel."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "sample_runs" / "tiny_gpt.py"
    return checkout if checkout.is_file() else package / "demo" / "tiny_gpt.py"


def _clear(run: Path) -> None:
    if run.exists() and any(run.iterdir()):
        if not (run / MARK).is_file():
            raise UsageError(
                "this folder is not a demo's and is left alone",
                where=str(run),
                next_step="give another one with --run",
            )
        shutil.rmtree(run)
    run.mkdir(parents=True, exist_ok=True)
    (run / MARK).write_text('{"made_by": "sdc-guard demo"}\n', encoding="utf-8")


def _train(run: Path, fault: list[str], seed: int) -> None:
    command = [sys.executable, str(sample_script()), "--run", str(run), "--steps", str(STEPS)]
    command += ["--every", str(EVERY), "--policy", "record", "--fault-seed", str(seed), *fault]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise CommandFailed(f"the training ended with {code}", where=" ".join(command))


def _show_recorded(run: Path, say: Say) -> None:
    with RunReader(run) as reader:
        steps, tensors = reader.rows(
            "SELECT (SELECT count(*) FROM steps),"
            " (SELECT count(DISTINCT (kind, layer)) FROM digests)"
        )[0]
        say(f"   {steps} steps, the digests of {tensors} tensors before and after each")
        for step, severity, name, text in reader.rows(
            "SELECT step, severity, coalesce(name, ''), detail->>'text'"
            " FROM alerts LEFT JOIN layer_names USING (layer) ORDER BY step"
        ):
            say(f"   ALERT ({severity}) step {step} {name}: {text}")
        for step, status in reader.rows("SELECT step, status FROM checkpoints ORDER BY step"):
            say(f"   checkpoint {step:4d}  {status}")


def _bisect(command: str, run: Path, say: Say, *options: str) -> dict[str, Any]:
    call = [sys.executable, "-m", "forensics.cli", command, str(run), "--json", *options]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise CommandFailed(
            f"sdc-bisect {command} gave no answer (exit code {done.returncode})"
        ) from None
    if "error" in answer:
        raise CommandFailed(f"sdc-bisect {command}: {answer['error']['what']}")
    corrupt = "none" if answer["first_corrupt"] is None else answer["first_corrupt"]
    say(f"   last clean {answer['last_clean']}, first corrupt {corrupt}")
    for line in answer["evidence"]:
        say(f"   - {line}")
    return answer


def _end_clean(run: Path, bracket: dict[str, Any], say: Say) -> bool:
    say(f"\n4. sdc-bisect verify --recorded --from {STEPS - EVERY}: do its steps replay?")
    replayed = _bisect("verify", run, say, "--recorded", "--from", str(STEPS - EVERY))
    with RunReader(run) as reader:
        alerts = reader.rows("SELECT count(*) FROM alerts")[0][0]
        doubted = reader.rows("SELECT count(*) FROM checkpoints WHERE status <> 'clean'")[0][0]
    accused = [
        alerts,
        doubted,
        bracket["first_corrupt"] is not None,
        replayed["first_corrupt"] is not None,
    ]
    if any(accused):
        say(f"\nSomething is accused although nothing was injected: {alerts} alerts")
        return False
    say("\nClean: nothing injected, nothing accused.")
    return True


def _compare(journal: list[InjectionRecord], located: dict[str, Any], say: Say) -> bool:
    if len(journal) != 1:
        say(f"\nThe injector fired {len(journal)} times instead of once.")
        return False
    injected, (word,) = journal[0], journal[0].touched
    tensors = located["tensors"]
    found = tensors[0] if len(tensors) == 1 else {}
    kind = "param" if injected.site == "weight" else injected.site
    rows: list[tuple[str, Any, Any]] = [
        ("step", injected.step, located["first_corrupt"]),
        ("kind", kind, found.get("kind")),
        ("tensor", injected.tensor, found.get("name")),
        ("element", word.index, found.get("index")),
        ("bits", word.bits, found.get("bits")),
        ("before", f"0x{word.before:x}", found.get("before")),
        ("after", f"0x{word.after:x}", found.get("after")),
        ("rank", injected.rank, located["rank"]),
    ]
    say(f"\n{'':10}{'injected':<28}{'located':<28}")
    for name, there, here in rows:
        say(f"{name:<10}{there!s:<28}{here!s:<28}{'ok' if there == here else 'DIFFERENT'}")
    same = all(there == here for _, there, here in rows) and bool(located["exact"])
    say("\nLocated what was injected." if same else "\nThe answer differs from the injection.")
    return same
