"""On a Ray cluster. The checkpoints and the command must be there under the same paths."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from sdc_guard.errors import UsageError

from .executor import Answer, Item
from .local import answers


class OnRay:
    """Up to `jobs` tasks at once on the cluster that Ray finds, or on one that it starts here.

    Args:
        jobs: at once.

    Raises:
        UsageError: Ray is not installed.
    """

    def __init__(self, jobs: int) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError(
                "--executor ray needs Ray, which is not installed",
                next_step="pip install ray, or leave it out: --jobs N runs here, in threads",
            ) from None
        self._ray: Any = ray
        self.jobs = jobs
        if not ray.is_initialized():
            ray.init(log_to_driver=False)

    def run(
        self, call: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[Item, Answer]]:
        """As `Executor.run`; `call` and the items are pickled."""
        remote = self._ray.remote(call)
        references = {remote.remote(item): item for item in items}
        try:
            yield from answers({reference.future(): item for reference, item in references.items()})
        except (KeyboardInterrupt, GeneratorExit):
            for reference in references:
                self._ray.cancel(reference)
            raise
