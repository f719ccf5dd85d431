"""A watch over weeks: readings of every GPU and its processes in a database, and what they show.

clock           time, as a value that tests can replace
schema          tables of the database, and how long each resolution is stored
database        opens the file: new, of an older version, damaged
aggregation     seconds to minutes and hours
writer          appends readings, computes minutes and hours, deletes the oldest
history         reads them back
observation     one reading of all devices, processes and the host
process_names   who a process belongs to, and which job it is part of
device_events   what the driver did between two readings
watcher         the loop
    background      the loop in a thread
    rollup          minutes and hours, from seconds
    usage           GPU-hours held and used, energy, cost
"""
