"""The live panel and the monitor."""
