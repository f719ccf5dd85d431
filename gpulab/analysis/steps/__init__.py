"""Steps: detection, which of them are evidence, the ledger of each, pauses, and gaps of the device."""
