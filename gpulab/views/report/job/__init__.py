"""The part of a report that is about a job: its ledger, waits between ranks, skew, and bandwidths of collectives."""
