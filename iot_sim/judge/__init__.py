"""The ledger of a run and the verdict on it; they share no code with the broker."""
