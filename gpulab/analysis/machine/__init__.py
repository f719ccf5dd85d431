"""The machine: clocks, power, sharing of the GPU, the link to it, memory and energy used."""
