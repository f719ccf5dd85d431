"""What DataLoader workers do, measured by them or while they are started."""
