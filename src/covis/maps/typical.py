"""What maps that are too small to test themselves are like.

Fitted to small maps of the campus (`train`, 10 to 49 photos of one to four walks, both recommended networks), each asked
with photos of other walks at its places, of places over 75 m away, and with the bank.
"""

from covis.logistic import Logistic

TYPICAL_RIGHT = Logistic((0,) * 7, 0.0, (0,) * 7, (1,) * 7)
TYPICAL_PRESENCE = Logistic((0,) * 8, 0.0, (0,) * 8, (1,) * 8)
