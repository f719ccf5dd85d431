"""How far the training loop is in its pass over the data: "step 12 of 40", and in which epoch."""

from __future__ import annotations

from dataclasses import dataclass

_RECENT_UPDATES = 5
_MAX_ACCUMULATED = 32  # batches before the first update, after which the loop counts as one without updates


@dataclass(frozen=True)
class LoaderPass:
    """A pass over the DataLoader of the loop."""

    step: int  # that runs, from 1
    steps: int  # of the whole pass; the loop may end earlier
    epoch: int  # from 1; a pass that was left after one step does not count


class PassCounter:
    """Counts the batches of the loader that paces the loop, and the batches for each update of the weights.

    The recorded thread counts; `state` may be called in any thread.
    """

    def __init__(self) -> None:
        self._pass = (-1, -1)  # the loader and its number of the pass
        self._batches = 0  # of this pass
        self._epoch = 0
        self._since_update = 0  # batches
        self._accumulated: tuple[int, ...] = ()  # batches from one update to the next, recently

    def add_batch(self, loader: int, epoch: int) -> None:
        """Count a batch. `epoch`: the loader's own number of the pass, which also counts a look at one batch."""
        if (loader, epoch) != self._pass:
            is_look = self._batches <= 1
            self._epoch = self._epoch + (not is_look) if loader == self._pass[0] else 1
            self._pass, self._batches = (loader, epoch), 0
            self._since_update = 0 if is_look else self._since_update
        self._batches += 1
        self._since_update += 1

    def add_update(self) -> None:
        """Count a step of an optimizer; the second optimizer of an iteration does not count."""
        if self._since_update:
            self._accumulated = (*self._accumulated[1 - _RECENT_UPDATES :], self._since_update)
            self._since_update = 0

    def state(self, batches: int | None) -> LoaderPass | None:
        """Return the progress; None if the length is unknown, or how many batches an update takes.

        `batches`: of a whole pass.
        """
        recent, batch = self._accumulated, self._batches
        if not batches or not batch or not (recent or batch > _MAX_ACCUMULATED):
            return None
        accumulated = max(recent, key=recent.count, default=1)
        steps = -(-batches // accumulated)
        return LoaderPass(min(-(-batch // accumulated), steps), steps, self._epoch)
