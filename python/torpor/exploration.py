"""Best of several attempts, each in a fork of its own."""

from __future__ import annotations

import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

from .errors import TorporError
from .fork_result import ForkResult

if TYPE_CHECKING:
    from .sandbox import Sandbox

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Exploration(Generic[Candidate]):
    """The best of several attempts."""

    #: The fork in which it was made, still running: yours to destroy.
    winner: "Sandbox"
    candidate: Candidate
    index: int
    score: float
    #: Of every candidate, in their order; None for one whose attempt failed.
    scores: List[Optional[float]]
    #: What the attempts raised, and forks that could not be made.
    failures: List[BaseException]


class _Attempts(Generic[Candidate]):
    """The attempts under way; from several threads."""

    def __init__(self, attempt: Callable[["Sandbox", Candidate], float], count: int) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._stopped = False
        self.best: Optional[Tuple["Sandbox", int, float]] = None
        self.scores: List[Optional[float]] = [None] * count
        self.failures: List[BaseException] = []

    def stop(self) -> None:
        """No attempt is begun from now on."""
        self._stopped = True

    def run(self, sandbox: "Sandbox", candidate: Candidate, index: int) -> None:
        if self._stopped:
            return
        try:
            score = _checked_score(self._attempt(sandbox, candidate), index)
        except Exception as error:
            self.fail(error)
            self.drop(sandbox)
            return
        loser: Optional["Sandbox"] = sandbox
        with self._lock:
            self.scores[index] = score
            best = self.best
            if best is None or score > best[2] or (score == best[2] and index < best[1]):
                self.best = (sandbox, index, score)
                loser = None if best is None else best[0]
        if loser is not None:
            self.drop(loser)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failures.append(error)

    def drop(self, sandbox: "Sandbox") -> None:
        try:
            sandbox.destroy()
        except TorporError as error:
            self.fail(error)  # its TTL or its owner ends it later


def explore(
    fork: Callable[[int], ForkResult],
    candidates: Sequence[Candidate],
    attempt: Callable[["Sandbox", Candidate], float],
    concurrency: Optional[int],
) -> Exploration[Candidate]:
    """Forks once a candidate, attempts each in its own fork, keeps the highest score and destroys the rest."""
    if len(candidates) == 0:
        raise TorporError("explore needs at least one candidate", code="invalid_request")
    if concurrency is not None and concurrency < 1:
        raise TorporError(
            f"concurrency must be at least 1, or None for all at once; it is {concurrency}",
            code="invalid_request",
        )
    forked = fork(len(candidates))
    attempts: _Attempts[Candidate] = _Attempts(attempt, len(candidates))
    attempts.failures.extend(forked.errors)
    numbered = zip(forked.sandboxes, enumerate(candidates))
    living = [(child, candidate, index) for child, (index, candidate) in numbered]
    workers = max(1, min(concurrency or len(living), len(living)))
    pool = ThreadPoolExecutor(workers, thread_name_prefix="torpor-explore")
    running: List["Future[None]"] = []
    try:
        for each in living:
            running.append(pool.submit(attempts.run, *each))
        for done in running:
            done.result()
    except BaseException:
        # ^C: nothing more is begun, and none is kept. What is queued would be run even after the pool's shutdown.
        attempts.stop()
        for waiting in running:
            waiting.cancel()
        pool.shutdown(wait=False)
        for sandbox, _candidate, _index in living:
            attempts.drop(sandbox)
        raise
    pool.shutdown()
    if attempts.best is None:
        raise TorporError(
            f"none of {len(candidates)} attempts came to a score", code="no_attempt_scored"
        ) from (attempts.failures[0] if attempts.failures else None)
    winner, index, score = attempts.best
    return Exploration(winner, candidates[index], index, score, attempts.scores, attempts.failures)


def _checked_score(score: object, index: int) -> float:
    """Attempts may return anything; compared, some of it would make some winner."""
    if isinstance(score, (int, float)) and not isinstance(score, bool) and math.isfinite(score):
        return score
    found = repr(score) if isinstance(score, float) else type(score).__name__
    raise TypeError(
        f"the attempt of candidate {index} returned {found}; return the score, a finite number, or raise"
    )
