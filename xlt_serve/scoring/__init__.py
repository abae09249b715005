"""Files in, files out, at any size: ``score(Order(...))``.

The road of a row: the room ``files`` finds and reads it in windows,
``local`` (threads) or ``cluster`` (Ray) answers the windows, ``answered`` knows the texts that came before,
``writers`` turns answers into bytes,
``journal`` makes sure that each is written exactly once, ``run`` ties them together.
"""

from xlt_serve.scoring.order import Order
from xlt_serve.scoring.run import score

__all__ = ["Order", "score"]
