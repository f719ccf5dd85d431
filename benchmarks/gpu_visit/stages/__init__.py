"""The stages of a visit: functions from a Visit to a StageResult."""
