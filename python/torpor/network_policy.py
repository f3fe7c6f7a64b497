"""What a sandbox may reach."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Mapping, Sequence, Union

#: `internet`, `none`, or rules: a mapping with `egress` (`internet` or `none`; default `none` with `allow`, else
#: `internet`), `allow` and `deny`, lists of addresses, CIDRs, domains and `*.domain`s, at most 1000 in all.
Network = Union[Literal["internet", "none"], Mapping[str, Union[str, Sequence[str]]]]

#: As the server shows it: a word, or rules with nothing left open.
NetworkPolicy = Union[str, Dict[str, Union[str, List[str]]]]


def network_wire(network: Network) -> Any:
    """A policy as it is sent; what is in it is the server's to refuse."""
    if isinstance(network, str):
        return network
    return {
        name: value if isinstance(value, str) else list(value) for name, value in network.items() if value is not None
    }
