"""The exact sign-flip test of changes that are all the same: there the t has no variance to go by.

Source: Fisher (1935), "The design of experiments", section 21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slicebeam.metrics.significance.tails import select_tail

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from slicebeam.metrics.arrays import FloatArray
    from slicebeam.metrics.kinds import Tail


def constant_p_value(n: ArrayLike, change: ArrayLike, tail: Tail) -> FloatArray:
    """Return the sign-flip p-value of n changes of the same size and sign.

    Parameters
    ----------
    n : float array [slices]
        Examples, or Kish's effective number where they are weighted, which is never more.
    change : float array [slices]
        The change of every example; 0 is no evidence of any.
    tail : {"upper", "lower", "both"}
        ``upper``: a large change is extreme.

    Returns
    -------
    float64 array [slices]
        2⁻ⁿ on the side of the change, 1 on the other, and 2¹⁻ⁿ for both.

    Notes
    -----
    Under the null each change is as likely to be of either sign, independently of the others: of
    2ⁿ equally likely outcomes one is as extreme as n changes of one sign. Assumption: changes are
    symmetric about 0 under the null.
    """
    size, mean = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(change, np.float64))
    extreme = np.exp2(-size)
    return select_tail(np.where(mean > 0, extreme, 1.0), np.where(mean < 0, extreme, 1.0), tail)
