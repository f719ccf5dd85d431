"""Labs of lesson 19: what a job costs in money, energy and CO2."""
