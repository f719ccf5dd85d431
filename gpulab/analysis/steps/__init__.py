"""Steps: detection, steps used as evidence, the ledger of step time, pauses, idle gaps of the device."""
