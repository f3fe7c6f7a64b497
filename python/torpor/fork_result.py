"""What became of a fork."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Iterator, List, Union

from .errors import TorporError

if TYPE_CHECKING:
    from .sandbox import Sandbox


@dataclass(frozen=True)
class ForkResult:
    """Children of a fork. Each succeeds or fails on its own; iterating gives those that live."""

    #: As many as were asked for: the child, or why there is none.
    children: List[Union["Sandbox", TorporError]]

    @property
    def sandboxes(self) -> List["Sandbox"]:
        """The children that live."""
        return [child for child in self.children if not isinstance(child, TorporError)]

    @property
    def errors(self) -> List[TorporError]:
        """Why the others do not."""
        return [child for child in self.children if isinstance(child, TorporError)]

    def __iter__(self) -> Iterator["Sandbox"]:
        return iter(self.sandboxes)
