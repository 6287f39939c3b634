"""The base of every value that passes through an exchange."""

from __future__ import annotations

import msgspec


class Value(msgspec.Struct, frozen=True, gc=False):
    """Frozen and compared by its fields, like a frozen dataclass, at a tenth of the cost to make one.

    An exchange makes some fifty of them. None may be part of a reference cycle: the garbage collector does not see
    them.
    """
