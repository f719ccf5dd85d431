"""What a timeline page asks its kernel: ledger of a window, details of a box, search."""
