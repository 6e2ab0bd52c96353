"""Ways of giving some parameters a rate or a decay of their own, one in each file; `divide.py` makes groups of them."""
