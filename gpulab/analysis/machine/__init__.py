"""The machine: clocks, power, GPU sharing, PCIe link, memory and energy used."""
