"""The paper's claims, what is measured of them, and the ledger that judges them."""
