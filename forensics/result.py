"""The answer of a search or a verification, as it is stored and printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sdc_guard.errors import EXIT_RANGE_ONLY

from .locate import LocatedTensor
from .two_findings import State

EXIT_CLEAN = 0
EXIT_LOCATED = 1
STORED_BYTES = "stored bytes"  # class of a fault that is in the checkpoint's file alone


@dataclass(frozen=True)
class Result:
    """An answer.

    Attributes:
        command: "run" or "verify".
        last_clean: step of the last clean checkpoint, or for verify of the last clean step.
        first_corrupt: step of the first corrupt checkpoint, or for verify the first corrupt
            step; None when nothing corrupt was found.
        exact: for run, whether no untestable, skipped or missing checkpoint lies between the two
            (before `last_clean` there may be some); for
            verify, whether the step is proven.
        proven: whether an exact comparison convicts; else it is a suspicion.
        skipped: steps of checkpoints that could not be judged.
        tensors: what differs, for verify.
        more_tensors: how many differ besides, at the same step, and are not located.
        kind: class of the fault ("state at rest", "stored bytes", ...), or None.
        verdict: intermittent, persistent, data or software, storage, undetermined; or None.
        rank: the rank it happened on, or None when unknown.
        machine: for verify, where that rank ran, by its own record: {rank, attempt, host,
            devices}; None where that is not recorded.
        probes: each judging: {step, verdict, reason, oracle}.
        evidence: sentences that the verdict rests on.
        unsettled: the exit code when nothing corrupt was found, but not everything is clean;
            None when it is.
        watched: share of the comparisons that could be made and were, between 0 and 1: for run,
            of the state's transitions up to the checkpoint named; for verify, of the digests of
            the replayed steps. None when the judge does not look at the trace.
        suspect: for run, the checkpoints that were suspect when they were saved, whatever the
            judge says of them: {step, reasons}.
        claim: for run, "first" when by what was judged `first_corrupt` is the first corrupt one
            among those searched; "transition" when others before it were not judged, so that it
            is the first only if what is corrupt stays corrupt. None when nothing was found.
        monotone: False when one is clean after a corrupt one, True when all were judged and none
            is, None when it is not known.
        transitions: for run with every checkpoint judged, each change from one to the next:
            {from, to, verdicts}; else None.
        trusted: steps of the ends that were not judged.
        confidence: of a noisy search, the probability that the answer is right; else None.
        likely: of a noisy search, the most likely first corrupt steps: {step, probability}; the
            step None stands for none.
        pass_rates: of a judge that answers by chance: {step, passed, runs}; else None.
        stable: False when such a judge fails on both sides alike: there is no boundary.
        first_good: whether the first clean one after corrupt ones was searched. Then `exact` and
            `claim` are about `first_clean`, and `last_clean` and `first_corrupt` are None.
        last_corrupt, first_clean: its bracket.
        damaged_files: for run, steps of the checkpoints judged whose stored bytes are wrong.
        state: for run, where `first_corrupt` is a damaged file, what is known of the training:
            that is another finding.
        proven_alert: the first proven alert about what a step computed, where the answer would
            otherwise be that nothing is corrupt, or that something later is the first.
        proven_by: for run, the replay that proved a step wrong whose checkpoints the search called
            clean: {session, step, last_clean, reason}. The two ends are then its.
        same_bits: for verify, the steps that a replay ran to the same bits, all of them compared:
            {after, until}; None where it did not.
        unreadable: for run, checkpoints that nobody can restore from, for their files cannot be
            read: {step, path, reason}.
    """

    command: str
    last_clean: int | None
    first_corrupt: int | None
    exact: bool
    proven: bool
    skipped: tuple[int, ...] = ()
    tensors: tuple[LocatedTensor, ...] = ()
    kind: str | None = None
    verdict: str | None = None
    rank: int | None = None
    probes: tuple[dict[str, Any], ...] = ()
    evidence: tuple[str, ...] = ()
    unsettled: int | None = None
    watched: float | None = None
    more_tensors: int = 0
    suspect: tuple[dict[str, Any], ...] = ()
    claim: str | None = None
    monotone: bool | None = None
    transitions: tuple[dict[str, Any], ...] | None = None
    trusted: tuple[int, ...] = ()
    confidence: float | None = None
    likely: tuple[dict[str, Any], ...] = ()
    pass_rates: tuple[dict[str, Any], ...] | None = None
    stable: bool = True
    first_good: bool = False
    last_corrupt: int | None = None
    first_clean: int | None = None
    damaged_files: tuple[int, ...] = ()
    state: State | None = None
    unreadable: tuple[dict[str, Any], ...] = ()
    proven_alert: dict[str, Any] | None = None
    machine: dict[str, Any] | None = None
    proven_by: dict[str, Any] | None = None
    same_bits: dict[str, int] | None = None

    @classmethod
    def of_bracket(cls, stored: dict[str, Any]) -> Result:
        """The bracket of a stored result of `run`."""
        return cls(
            command="run",
            last_clean=stored["last_clean"],
            first_corrupt=stored["first_corrupt"],
            exact=bool(stored["exact"]),
            proven=bool(stored["proven"]),
            skipped=tuple(stored["skipped"]),
            kind=stored["class"],
            verdict=stored["verdict"],
            probes=tuple(stored["probes"]),
            evidence=tuple(stored["evidence"]),
            watched=stored.get("watched"),
            suspect=tuple(stored.get("suspect", ())),
            claim=stored.get("claim"),
            monotone=stored.get("monotone"),
            trusted=tuple(stored.get("trusted", ())),
            damaged_files=tuple(stored.get("damaged_files", ())),
            state=State(**stored["state"]) if stored.get("state") else None,
            unreadable=tuple(stored.get("unreadable", ())),
            proven_alert=stored.get("proven_alert"),
            proven_by=stored.get("proven_by"),
        )

    @property
    def exit_code(self) -> int:
        """The exit code of `sdc-bisect`."""
        named = self.first_corrupt
        if self.first_good and self.last_corrupt is not None:
            named = self.first_clean
        if named is None:
            return EXIT_CLEAN if self.unsettled is None else self.unsettled
        return EXIT_LOCATED if self.exact else EXIT_RANGE_ONLY

    def as_dict(self) -> dict[str, Any]:
        """The result as one JSON object."""
        return {
            "schema": {"name": f"sdc-bisect.{self.command}", "version": 1},
            "last_clean": self.last_clean,
            "first_corrupt": self.first_corrupt,
            "exact": self.exact,
            "proven": self.proven,
            "skipped": list(self.skipped),
            "tensors": [tensor.as_dict() for tensor in self.tensors],
            "class": self.kind,
            "verdict": self.verdict,
            "rank": self.rank,
            "probes": list(self.probes),
            "evidence": list(self.evidence),
            "watched": self.watched,
            "more_tensors": self.more_tensors,
            "suspect": list(self.suspect),
            **({} if self.proven_alert is None else {"proven_alert": self.proven_alert}),
            **({} if self.machine is None else {"machine": self.machine}),
            **({} if self.proven_by is None else {"proven_by": self.proven_by}),
            **({} if self.same_bits is None else {"same_bits": self.same_bits}),
            **self._of_search(),
        }

    def _of_search(self) -> dict[str, Any]:
        """What only `run` has to say."""
        if self.command != "run":
            return {}
        content: dict[str, Any] = {
            "claim": self.claim,
            "monotone": self.monotone,
            "trusted": list(self.trusted),
            "stable": self.stable,
            "damaged_files": list(self.damaged_files),
            "unreadable": list(self.unreadable),
        }
        if self.state is not None:
            content["state"] = self.state.as_dict()
        if self.transitions is not None:
            content["transitions"] = list(self.transitions)
        if self.confidence is not None:
            content |= {"confidence": self.confidence, "likely": list(self.likely)}
        if self.pass_rates is not None:
            content["pass_rates"] = list(self.pass_rates)
        if self.first_good:
            content |= {"last_corrupt": self.last_corrupt, "first_clean": self.first_clean}
        return content
