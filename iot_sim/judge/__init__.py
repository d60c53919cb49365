"""The ledger of a run and the verdict on it. Shares no code with the broker that it judges."""
