"""The queries of a timeline page: ledger of a time window, details of a box, search by name."""
