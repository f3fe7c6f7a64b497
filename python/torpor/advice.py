"""Which shape of sandbox to pick, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional

from ._answered_list import answered_list


@dataclass(frozen=True)
class AdviceStep:
    """One of the six questions, and what its answer speaks for."""

    #: `survives`, `untrusted`, `warmth`, `single_tenant`, `idle` or `unsure`.
    question: str
    asks: str
    #: `yes`, `no` or `unknown`.
    answer: str
    #: `ephemeral`, `stateful`, or None for neither.
    points_to: Optional[str]
    decides: bool
    reason: str


@dataclass(frozen=True)
class Advice:
    #: `ephemeral` or `stateful`.
    shape: str
    #: The question that decided.
    decided_by: str
    reason: str
    steps: List[AdviceStep]
    #: Arguments of `Sandbox.create`: `persistent`, the clocks, and what they do.
    settings: Dict[str, Any]
    #: `{"kind", "when"}`: what of the six kinds of state is gone, and when.
    lost: List[Dict[str, Any]]
    notes: List[str]
    #: By the API's names: what each alternative costs a day, how often it starts cold, and how long a use waits.
    costs: List[Dict[str, Any]]
    #: Seconds between two uses from which on one way costs less than another; None for never.
    break_even: Dict[str, Optional[float]]
    #: What was counted with, and whether it was measured on the server's machine.
    facts: Dict[str, Any]


@dataclass(frozen=True)
class TakenAdvice:
    """What was advised for a sandbox made with `lifecycle="auto"`, and what of it was taken."""

    shape: str
    decided_by: str
    reason: str
    steps: List[AdviceStep]
    lost: List[Dict[str, Any]]
    notes: List[str]
    #: Settings that are as advised, with their values.
    applied: Dict[str, Any]
    #: Settings that the caller gave.
    set_by_caller: List[str]


def advice(wire: Mapping[str, Any]) -> Advice:
    return Advice(
        **_walked(wire),
        settings=dict(wire.get("settings") or {}),
        costs=answered_list(wire, "costs"),
        break_even=dict(wire.get("break_even") or {}),
        facts=dict(wire.get("facts") or {}),
    )


def taken_advice(wire: Optional[Mapping[str, Any]]) -> Optional[TakenAdvice]:
    if not wire:
        return None
    return TakenAdvice(
        **_walked(wire),
        applied=dict(wire.get("applied") or {}),
        set_by_caller=list(wire.get("set_by_caller") or []),
    )


def _walked(wire: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "shape": wire.get("shape", ""),
        "decided_by": wire.get("decided_by", ""),
        "reason": wire.get("reason", ""),
        "steps": [
            AdviceStep(
                question=step.get("question", ""),
                asks=step.get("asks", ""),
                answer=step.get("answer", ""),
                points_to=step.get("points_to"),
                decides=step.get("decides") is True,
                reason=step.get("reason", ""),
            )
            for step in wire.get("steps") or []
        ],
        "lost": list(wire.get("lost") or []),
        "notes": list(wire.get("notes") or []),
    }
